#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat berry.txt baker.txt > moon.txt
