#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u fence.log > rain.txt
