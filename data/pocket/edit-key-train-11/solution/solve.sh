#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sed -i s/^meadow=.*/meadow=cotton/ frog.conf
