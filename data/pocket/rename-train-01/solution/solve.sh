#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in canyon/*.jazz; do mv $f ${f%.jazz}.piano; done
