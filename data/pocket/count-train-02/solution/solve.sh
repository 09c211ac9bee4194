#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c red potato.log > answer.txt
