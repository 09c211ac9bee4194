#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p canyon; mv $(grep -l swan steel/*) canyon
