#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in amber/*.palace; do mv $f ${f%.palace}.wolf; done
