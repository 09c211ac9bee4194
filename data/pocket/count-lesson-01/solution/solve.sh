#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c canyon palace.log > answer.txt
