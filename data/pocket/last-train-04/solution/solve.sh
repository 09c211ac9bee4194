#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
tail -n 1 storm.log > lake.txt
