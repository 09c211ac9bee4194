#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^bear= copper | cut -d= -f2 > answer.txt
