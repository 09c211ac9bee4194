#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in garlic/*.falcon; do mv $f ${f%.falcon}.salmon; done
