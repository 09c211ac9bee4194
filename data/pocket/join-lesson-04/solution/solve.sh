#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat breeze.txt green.txt > bronze.txt
