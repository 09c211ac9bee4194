#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat harbor.txt pilot.txt > doctor.txt
