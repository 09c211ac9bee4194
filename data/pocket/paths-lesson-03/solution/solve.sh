#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l baker black/* > frog.txt
