#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in castle/*.camel; do mv $f ${f%.camel}.milk; done
