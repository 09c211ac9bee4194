#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^piano= book | cut -d= -f2 > answer.txt
