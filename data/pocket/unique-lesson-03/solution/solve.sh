#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u orange.log > camel.txt
