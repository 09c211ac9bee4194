#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l sheep south/* > anchor.txt
