#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p wheel; mv $(grep -l berry sheep/*) wheel
