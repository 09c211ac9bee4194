#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p drum; mv $(grep -l violet peach/*) drum
