#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort melon.txt > plum.txt
