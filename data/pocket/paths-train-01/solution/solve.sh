#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l gold floor/* > valley.txt
