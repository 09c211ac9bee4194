#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l spring rain/* > autumn.txt
