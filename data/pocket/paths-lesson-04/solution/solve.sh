#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l sailor honey/* > moon.txt
