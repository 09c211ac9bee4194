#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in yellow/*.fox; do mv $f ${f%.fox}.whale; done
