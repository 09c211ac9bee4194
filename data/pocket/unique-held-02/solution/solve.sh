#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u winter.log > potato.txt
