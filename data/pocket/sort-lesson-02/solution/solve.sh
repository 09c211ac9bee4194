#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sort pilot.txt > orange.txt
