#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^cotton= horse | cut -d= -f2 > answer.txt
