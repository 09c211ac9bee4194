#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep crow apple.log > castle.txt
