#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort chair.txt > olive.txt
