#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -v onion basket.log > ginger.txt
