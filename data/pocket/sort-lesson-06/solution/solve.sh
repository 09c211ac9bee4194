#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort door.txt > moon.txt
