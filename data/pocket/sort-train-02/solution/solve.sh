#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort violet.txt > lake.txt
