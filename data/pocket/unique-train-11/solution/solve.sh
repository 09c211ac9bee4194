#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u raven.log > wool.txt
