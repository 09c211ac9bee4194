#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in boat/*.potato; do mv $f ${f%.potato}.garden; done
