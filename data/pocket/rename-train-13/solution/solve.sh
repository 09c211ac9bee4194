#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in lake/*.harbor; do mv $f ${f%.harbor}.summer; done
