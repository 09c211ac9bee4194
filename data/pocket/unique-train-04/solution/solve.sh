#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u piano.log > north.txt
