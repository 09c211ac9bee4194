#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p harbor; mv $(grep -l orange green/*) harbor
