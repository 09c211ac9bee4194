#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l ruby storm/* > snake.txt
