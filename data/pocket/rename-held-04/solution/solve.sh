#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in lemon/*.boat; do mv $f ${f%.boat}.copper; done
