#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat desert.txt turtle.txt > queen.txt
