#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c rabbit orange.log > answer.txt
