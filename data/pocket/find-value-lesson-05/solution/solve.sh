#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^meadow= eagle | cut -d= -f2 > answer.txt
