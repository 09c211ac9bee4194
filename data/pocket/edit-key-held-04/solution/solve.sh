#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sed -i s/^jazz=.*/jazz=truck/ iron.conf
