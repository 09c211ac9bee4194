#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat ginger.txt gold.txt > monkey.txt
