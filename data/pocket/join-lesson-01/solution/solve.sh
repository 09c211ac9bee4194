#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat flour.txt rabbit.txt > rain.txt
