#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
cat snake.txt green.txt > storm.txt
