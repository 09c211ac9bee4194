#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^heart= sheep | cut -d= -f2 > answer.txt
