#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p book; mv $(grep -l lunar foot/*) book
