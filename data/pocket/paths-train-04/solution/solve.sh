#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l cherry bear/* > solar.txt
