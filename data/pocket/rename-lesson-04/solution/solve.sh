#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in insect/*.river; do mv $f ${f%.river}.beetle; done
