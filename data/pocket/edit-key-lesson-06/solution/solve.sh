#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sed -i s/^tiger=.*/tiger=pillow/ horse.conf
