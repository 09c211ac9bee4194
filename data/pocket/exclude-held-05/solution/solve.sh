#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -v ship wool.log > farm.txt
