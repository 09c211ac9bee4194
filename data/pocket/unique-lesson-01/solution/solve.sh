#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort -u spider.log > cheese.txt
