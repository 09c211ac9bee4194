#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep valley dragon.log > cream.txt
