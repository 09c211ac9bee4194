#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat baker.txt berry.txt > moon.txt
