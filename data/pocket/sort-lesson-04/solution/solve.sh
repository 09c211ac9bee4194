#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort cherry.txt > rocket.txt
