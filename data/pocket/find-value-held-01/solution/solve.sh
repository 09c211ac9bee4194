#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^wool= baker | cut -d= -f2 > answer.txt
