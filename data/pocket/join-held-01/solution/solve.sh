#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat ship.txt pencil.txt > solar.txt
