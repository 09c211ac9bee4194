#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^frost= queen | cut -d= -f2 > answer.txt
