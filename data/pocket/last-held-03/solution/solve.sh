#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
tail -n 1 potato.log > paper.txt
