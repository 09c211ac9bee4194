#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c gray ginger.log > answer.txt
