#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat dragon.txt marble.txt > galaxy.txt
