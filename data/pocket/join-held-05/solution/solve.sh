#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat silver.txt chair.txt > crow.txt
