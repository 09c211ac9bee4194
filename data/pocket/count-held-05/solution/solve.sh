#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c mango honey.log > answer.txt
