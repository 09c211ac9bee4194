#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
grep -l boat mirror/* > pink.txt
