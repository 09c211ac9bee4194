#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c pepper iron.log > answer.txt
