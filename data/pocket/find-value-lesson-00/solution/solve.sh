#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^rocket= rain | cut -d= -f2 > answer.txt
