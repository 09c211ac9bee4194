#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -v wine cherry.log > rocket.txt
