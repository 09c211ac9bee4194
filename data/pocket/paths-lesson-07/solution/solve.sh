#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l flour guitar/* > ginger.txt
