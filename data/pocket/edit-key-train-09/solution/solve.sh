#!/bin/bash
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
sed -i s/^lunar=.*/lunar=truck/ spider.conf
