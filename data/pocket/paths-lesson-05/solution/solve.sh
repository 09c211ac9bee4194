#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l river sheep/* > horse.txt
