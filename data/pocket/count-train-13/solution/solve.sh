#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c autumn wine.log > answer.txt
