#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c grape hammer.log > answer.txt
