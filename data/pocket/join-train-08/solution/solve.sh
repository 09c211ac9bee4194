#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat plum.txt frog.txt > moon.txt
