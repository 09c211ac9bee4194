#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^spider= ocean | cut -d= -f2 > answer.txt
