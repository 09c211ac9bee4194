#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep red brown.log > table.txt
