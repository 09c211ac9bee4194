#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u flour.log > orange.txt
