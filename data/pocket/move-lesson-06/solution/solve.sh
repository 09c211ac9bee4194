#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p farm; mv $(grep -l river floor/*) farm
