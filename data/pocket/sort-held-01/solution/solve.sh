#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort rabbit.txt > monkey.txt
