#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u square.log > paper.txt
