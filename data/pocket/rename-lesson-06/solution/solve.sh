#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in gray/*.banana; do mv $f ${f%.banana}.beetle; done
