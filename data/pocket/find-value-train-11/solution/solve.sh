#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -rh ^insect= mirror | cut -d= -f2 > answer.txt
