#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l coffee orange/* > frog.txt
