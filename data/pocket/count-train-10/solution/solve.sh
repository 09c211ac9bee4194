#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c brown cloud.log > answer.txt
