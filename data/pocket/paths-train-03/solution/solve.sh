#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l book milk/* > yellow.txt
