#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in chair/*.circle; do mv $f ${f%.circle}.insect; done
