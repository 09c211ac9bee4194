#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat marble.txt dragon.txt > galaxy.txt
