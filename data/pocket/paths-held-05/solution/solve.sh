#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l white cheese/* > garden.txt
