#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u red.log > pencil.txt
