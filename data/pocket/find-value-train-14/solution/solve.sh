#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^comet= finger | cut -d= -f2 > answer.txt
