#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat wheel.txt barn.txt > prince.txt
