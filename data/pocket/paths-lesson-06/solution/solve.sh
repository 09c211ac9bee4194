#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l drum olive/* > harbor.txt
