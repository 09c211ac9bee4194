#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -c south tea.log > answer.txt
