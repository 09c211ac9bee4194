#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p apple; mv $(grep -l fox violet/*) apple
