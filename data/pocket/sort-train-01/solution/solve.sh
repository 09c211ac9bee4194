#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort market.txt > foot.txt
