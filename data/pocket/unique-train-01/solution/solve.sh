#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u garlic.log > milk.txt
