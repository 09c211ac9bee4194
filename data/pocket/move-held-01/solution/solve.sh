#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p lunar; mv $(grep -l orbit silk/*) lunar
