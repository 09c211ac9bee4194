#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^square= turtle | cut -d= -f2 > answer.txt
