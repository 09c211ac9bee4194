#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^sugar= lemon | cut -d= -f2 > answer.txt
