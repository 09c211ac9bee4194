#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l sailor castle/* > table.txt
