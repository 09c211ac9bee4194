#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat garden.txt coffee.txt > cotton.txt
