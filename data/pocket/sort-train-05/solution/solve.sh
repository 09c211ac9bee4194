#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort basket.txt > ship.txt
