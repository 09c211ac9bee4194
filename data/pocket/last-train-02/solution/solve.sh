#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
tail -n 1 queen.log > palace.txt
