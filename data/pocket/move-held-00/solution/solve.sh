#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p velvet; mv $(grep -l orange hammer/*) velvet
