#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in steel/*.snow; do mv $f ${f%.snow}.heart; done
