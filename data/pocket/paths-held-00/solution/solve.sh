#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l table bear/* > breeze.txt
