#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c fox frog.log > answer.txt
