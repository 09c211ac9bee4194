#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in wool/*.spider; do mv $f ${f%.spider}.desert; done
