#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort plum.txt > butter.txt
