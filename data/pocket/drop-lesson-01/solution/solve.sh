#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sed -i /falcon/d table.log
