#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort wheel.txt > tower.txt
