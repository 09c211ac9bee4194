#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^gold= ocean | cut -d= -f2 > answer.txt
