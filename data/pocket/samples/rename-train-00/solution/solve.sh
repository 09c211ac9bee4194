#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in table/*.ladder; do mv $f ${f%.ladder}.fox; done
