#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l rocket brown/* > goat.txt
