#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l south pink/* > ocean.txt
