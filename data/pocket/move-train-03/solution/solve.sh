#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p snow; mv $(grep -l south gray/*) snow
