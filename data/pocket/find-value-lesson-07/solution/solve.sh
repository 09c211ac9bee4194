#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^boat= rocket | cut -d= -f2 > answer.txt
