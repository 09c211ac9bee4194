#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l amber insect/* > roof.txt
