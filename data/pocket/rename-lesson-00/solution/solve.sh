#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in castle/*.whale; do mv $f ${f%.whale}.copper; done
