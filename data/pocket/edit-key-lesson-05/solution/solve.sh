#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sed -i s/^peach=.*/peach=swan/ garden.conf
