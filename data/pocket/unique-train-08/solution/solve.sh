#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u swan.log > roof.txt
