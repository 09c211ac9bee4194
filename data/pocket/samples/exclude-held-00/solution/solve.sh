#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -v flour lake.log > tiger.txt
