#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort white.txt > cheese.txt
