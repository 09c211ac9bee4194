#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in north/*.roof; do mv $f ${f%.roof}.silver; done
