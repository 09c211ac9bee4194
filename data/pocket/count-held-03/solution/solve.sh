#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c apple bread.log > answer.txt
