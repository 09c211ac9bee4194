#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p barn; mv $(grep -l eagle ladder/*) barn
