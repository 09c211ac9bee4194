#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in pearl/*.baker; do mv $f ${f%.baker}.market; done
