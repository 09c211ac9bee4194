#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u sailor.log > velvet.txt
