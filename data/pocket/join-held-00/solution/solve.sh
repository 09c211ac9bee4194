#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat coffee.txt garden.txt > cotton.txt
