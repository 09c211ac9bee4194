#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat basket.txt wine.txt > crow.txt
