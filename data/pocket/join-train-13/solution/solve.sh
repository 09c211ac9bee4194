#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat velvet.txt frost.txt > bridge.txt
