#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p table; mv $(grep -l fence ginger/*) table
