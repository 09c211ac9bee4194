#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort beetle.txt > wolf.txt
