#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sed -i s/^harbor=.*/harbor=onion/ rain.conf
