#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat chair.txt silver.txt > crow.txt
