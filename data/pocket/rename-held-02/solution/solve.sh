#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in dragon/*.beetle; do mv $f ${f%.beetle}.lunar; done
