#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u juice.log > snake.txt
