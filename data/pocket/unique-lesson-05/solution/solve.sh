#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u guitar.log > river.txt
