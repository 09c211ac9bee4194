#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u copper.log > sugar.txt
