#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
tail -n 1 palace.log > frog.txt
