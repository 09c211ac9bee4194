#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^ginger= marble | cut -d= -f2 > answer.txt
