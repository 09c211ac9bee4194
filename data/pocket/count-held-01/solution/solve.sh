#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c snake purple.log > answer.txt
