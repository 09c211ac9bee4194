#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort king.txt > zebra.txt
