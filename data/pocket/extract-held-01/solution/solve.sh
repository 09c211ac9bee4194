#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep cheese mango.log > blue.txt
