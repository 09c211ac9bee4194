#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u king.log > butter.txt
