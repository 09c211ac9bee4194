#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^fox= cheese | cut -d= -f2 > answer.txt
