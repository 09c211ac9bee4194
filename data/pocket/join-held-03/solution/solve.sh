#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat garlic.txt black.txt > iron.txt
