#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c tea castle.log > answer.txt
