#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p cloud; mv $(grep -l ship purple/*) cloud
