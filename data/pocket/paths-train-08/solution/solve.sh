#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l foot potato/* > desert.txt
