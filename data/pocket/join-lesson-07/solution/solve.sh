#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat barn.txt eagle.txt > purple.txt
