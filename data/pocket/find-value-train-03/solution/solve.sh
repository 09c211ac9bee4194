#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^garlic= tower | cut -d= -f2 > answer.txt
