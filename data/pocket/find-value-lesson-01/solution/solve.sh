#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^harbor= barn | cut -d= -f2 > answer.txt
