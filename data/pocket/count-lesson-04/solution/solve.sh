#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c berry mirror.log > answer.txt
