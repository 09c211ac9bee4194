#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in salt/*.swan; do mv $f ${f%.swan}.potato; done
