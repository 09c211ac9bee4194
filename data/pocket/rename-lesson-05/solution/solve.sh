#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in foot/*.goat; do mv $f ${f%.goat}.lunar; done
