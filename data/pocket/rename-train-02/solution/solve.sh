#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
for f in wheel/*.salt; do mv $f ${f%.salt}.silk; done
