#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l olive temple/* > salt.txt
