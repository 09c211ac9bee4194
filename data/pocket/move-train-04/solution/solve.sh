#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p onion; mv $(grep -l sheep anchor/*) onion
