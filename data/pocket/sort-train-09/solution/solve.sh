#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort sheep.txt > frog.txt
