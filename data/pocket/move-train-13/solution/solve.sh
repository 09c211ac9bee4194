#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p wine; mv $(grep -l jazz orbit/*) wine
