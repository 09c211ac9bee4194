#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c potato copper.log > answer.txt
