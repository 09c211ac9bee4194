#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat ocean.txt mango.txt > jazz.txt
