#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u hammer.log > rain.txt
