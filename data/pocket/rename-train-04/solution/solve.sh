#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in drum/*.dragon; do mv $f ${f%.dragon}.grape; done
