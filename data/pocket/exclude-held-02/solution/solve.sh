#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -v bridge chair.log > garlic.txt
