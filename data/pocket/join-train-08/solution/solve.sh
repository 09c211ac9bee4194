#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat frog.txt plum.txt > moon.txt
