#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep moon foot.log > storm.txt
