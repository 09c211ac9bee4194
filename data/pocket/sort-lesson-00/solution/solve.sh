#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort finger.txt > river.txt
