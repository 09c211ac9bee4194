#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
mkdir -p banana; mv $(grep -l turtle pepper/*) banana
