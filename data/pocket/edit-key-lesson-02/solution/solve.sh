#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sed -i s/^wind=.*/wind=jazz/ table.conf
