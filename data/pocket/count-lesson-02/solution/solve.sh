#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c insect spider.log > answer.txt
