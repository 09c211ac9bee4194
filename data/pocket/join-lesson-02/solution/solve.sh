#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat apple.txt gold.txt > orange.txt
