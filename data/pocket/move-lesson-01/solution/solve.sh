#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p bucket; mv $(grep -l steel meadow/*) bucket
