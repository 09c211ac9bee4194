#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat honey.txt onion.txt > duck.txt
