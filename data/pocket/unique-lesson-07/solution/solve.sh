#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u rain.log > crow.txt
