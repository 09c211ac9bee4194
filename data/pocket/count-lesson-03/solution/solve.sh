#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c duck snake.log > answer.txt
