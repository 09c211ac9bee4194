#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
tail -n 1 desert.log > rabbit.txt
