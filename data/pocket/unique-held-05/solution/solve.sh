#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u pencil.log > turtle.txt
