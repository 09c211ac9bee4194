#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort storm.txt > summer.txt
