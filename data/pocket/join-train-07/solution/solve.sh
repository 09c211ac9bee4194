#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat swan.txt melon.txt > rabbit.txt
