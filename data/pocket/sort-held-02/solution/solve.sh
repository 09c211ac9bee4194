#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort cotton.txt > pepper.txt
