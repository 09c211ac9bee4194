#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sed -i s/^lion=.*/lion=anchor/ hammer.conf
