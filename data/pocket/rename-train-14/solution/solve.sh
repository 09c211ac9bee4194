#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in rabbit/*.piano; do mv $f ${f%.piano}.sailor; done
