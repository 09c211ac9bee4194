#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^pilot= snake | cut -d= -f2 > answer.txt
