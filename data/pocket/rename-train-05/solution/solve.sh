#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in fence/*.green; do mv $f ${f%.green}.tea; done
