#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat fox.txt floor.txt > desert.txt
