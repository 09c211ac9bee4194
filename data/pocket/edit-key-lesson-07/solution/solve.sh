#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sed -i s/^apple=.*/apple=lunar/ zebra.conf
