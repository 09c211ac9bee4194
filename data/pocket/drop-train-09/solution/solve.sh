#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sed -i /linen/d south.log
