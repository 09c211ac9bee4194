#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c bottle truck.log > answer.txt
