#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c bronze rocket.log > answer.txt
