#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat swan.txt copper.txt > paper.txt
