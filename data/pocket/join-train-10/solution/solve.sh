#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat onion.txt honey.txt > duck.txt
