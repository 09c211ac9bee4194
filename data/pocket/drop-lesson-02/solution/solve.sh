#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sed -i /wind/d winter.log
