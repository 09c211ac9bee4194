#!/bin/bash
# Grades the final workspace. The folders are variables so that a test can grade without a container.
exec python3 -I -S -B "${CORRAL_TESTS:-/tests}/check.py"
