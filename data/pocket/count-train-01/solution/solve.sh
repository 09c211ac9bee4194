#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c finger falcon.log > answer.txt
