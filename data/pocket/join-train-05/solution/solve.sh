#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat wool.txt steel.txt > milk.txt
