#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c bucket snow.log > answer.txt
