#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat hammer.txt rain.txt > amber.txt
