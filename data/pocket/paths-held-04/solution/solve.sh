#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l goat orbit/* > frost.txt
