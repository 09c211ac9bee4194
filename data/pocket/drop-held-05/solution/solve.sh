#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sed -i /sheep/d canyon.log
