#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p purple; mv $(grep -l iron pillow/*) purple
