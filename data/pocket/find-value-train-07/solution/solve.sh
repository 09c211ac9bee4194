#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^wine= queen | cut -d= -f2 > answer.txt
