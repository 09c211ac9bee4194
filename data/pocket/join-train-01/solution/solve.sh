#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat gold.txt ginger.txt > monkey.txt
