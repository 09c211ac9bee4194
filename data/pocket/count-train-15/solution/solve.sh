#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c north honey.log > answer.txt
