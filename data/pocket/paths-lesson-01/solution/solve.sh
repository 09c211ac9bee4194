#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l duck palace/* > market.txt
