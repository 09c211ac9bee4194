#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in castle/*.bucket; do mv $f ${f%.bucket}.spider; done
