#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort galaxy.txt > bear.txt
