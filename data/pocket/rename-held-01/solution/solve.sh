#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in silver/*.monkey; do mv $f ${f%.monkey}.summer; done
