#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u wine.log > snow.txt
