#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p queen; mv $(grep -l meadow iron/*) queen
