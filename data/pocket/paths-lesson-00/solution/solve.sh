#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l piano ship/* > foot.txt
