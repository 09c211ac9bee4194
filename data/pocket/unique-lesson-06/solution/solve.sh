#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u ginger.log > peach.txt
