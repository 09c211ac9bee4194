#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^tower= fence | cut -d= -f2 > answer.txt
