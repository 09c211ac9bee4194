#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep berry planet.log > salt.txt
