#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sed -i s/^wolf=.*/wolf=bucket/ blue.conf
