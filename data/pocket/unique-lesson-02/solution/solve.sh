#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u gray.log > spider.txt
