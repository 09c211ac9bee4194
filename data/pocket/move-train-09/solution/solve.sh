#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p tiger; mv $(grep -l fox falcon/*) tiger
