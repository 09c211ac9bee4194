#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat copper.txt swan.txt > paper.txt
