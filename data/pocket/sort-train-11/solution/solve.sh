#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort silver.txt > dragon.txt
