#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p plum; mv $(grep -l bronze prince/*) plum
