#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c north berry.log > answer.txt
