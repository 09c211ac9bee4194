#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in queen/*.camel; do mv $f ${f%.camel}.south; done
