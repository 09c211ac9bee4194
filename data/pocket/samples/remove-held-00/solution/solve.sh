#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
rm $(grep -l pillow baker/*)
