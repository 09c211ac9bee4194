#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c gray chair.log > answer.txt
