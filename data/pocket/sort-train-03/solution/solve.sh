#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort steel.txt > silk.txt
