#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p horse; mv $(grep -l camel goat/*) horse
