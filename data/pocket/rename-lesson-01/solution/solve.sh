#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in bridge/*.cream; do mv $f ${f%.cream}.planet; done
