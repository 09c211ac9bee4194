#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat storm.txt temple.txt > marble.txt
