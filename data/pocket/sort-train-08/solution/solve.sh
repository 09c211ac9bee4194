#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort bear.txt > lake.txt
