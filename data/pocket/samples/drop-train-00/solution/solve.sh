#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sed -i /north/d potato.log
