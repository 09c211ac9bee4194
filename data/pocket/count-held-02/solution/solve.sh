#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c mirror black.log > answer.txt
