#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u salmon.log > cream.txt
