#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^zebra= tiger | cut -d= -f2 > answer.txt
