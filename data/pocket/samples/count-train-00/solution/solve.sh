#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c dragon door.log > answer.txt
