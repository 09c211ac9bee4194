#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p moon; mv $(grep -l pilot tiger/*) moon
