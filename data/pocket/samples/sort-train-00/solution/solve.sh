#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort wind.txt > banana.txt
