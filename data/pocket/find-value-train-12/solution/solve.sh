#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^salmon= king | cut -d= -f2 > answer.txt
