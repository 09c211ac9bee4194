#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^banana= lunar | cut -d= -f2 > answer.txt
