#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat square.txt plum.txt > garlic.txt
