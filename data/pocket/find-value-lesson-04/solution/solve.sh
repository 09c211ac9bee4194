#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^green= horse | cut -d= -f2 > answer.txt
