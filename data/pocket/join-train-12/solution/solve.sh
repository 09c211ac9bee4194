#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat pepper.txt cloud.txt > drum.txt
