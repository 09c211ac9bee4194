#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat steel.txt wool.txt > milk.txt
