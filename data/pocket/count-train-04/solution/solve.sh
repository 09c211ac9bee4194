#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c guitar temple.log > answer.txt
