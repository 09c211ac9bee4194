#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat canyon.txt anchor.txt > bronze.txt
