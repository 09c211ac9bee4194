#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sed -i s/^breeze=.*/breeze=book/ snow.conf
