#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c autumn bridge.log > answer.txt
