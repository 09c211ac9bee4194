#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^cream= baker | cut -d= -f2 > answer.txt
