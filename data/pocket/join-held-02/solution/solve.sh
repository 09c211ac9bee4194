#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat wheel.txt frog.txt > milk.txt
