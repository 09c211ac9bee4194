#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in white/*.fox; do mv $f ${f%.fox}.sailor; done
