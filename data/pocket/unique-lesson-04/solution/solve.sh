#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u violet.log > wolf.txt
