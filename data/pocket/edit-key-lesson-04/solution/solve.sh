#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sed -i s/^drum=.*/drum=doctor/ frog.conf
