#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p gray; mv $(grep -l bear pilot/*) gray
