#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in prince/*.duck; do mv $f ${f%.duck}.autumn; done
