#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort coffee.txt > ocean.txt
