#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^pilot= boat | cut -d= -f2 > answer.txt
