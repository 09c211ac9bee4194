#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sed -i s/^pearl=.*/pearl=lion/ horse.conf
