#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u lake.log > barn.txt
