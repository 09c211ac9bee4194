#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^zebra= steel | cut -d= -f2 > answer.txt
