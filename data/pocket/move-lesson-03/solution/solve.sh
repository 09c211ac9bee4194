#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p green; mv $(grep -l bucket wool/*) green
