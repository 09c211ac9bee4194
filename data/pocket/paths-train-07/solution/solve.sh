#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l roof basket/* > bronze.txt
