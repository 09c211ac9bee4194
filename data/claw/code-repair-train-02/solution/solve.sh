#!/bin/bash
# The oracle: solves the task from the workspace alone.
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
python3 -I -S -B - <<'PROGRAM'
source = open('mail.py').read()
open('mail.py', 'w').write(source.replace('def late_fee(days):\n    weeks = days // 7\n    return weeks * 2\n', 'def late_fee(days):\n    weeks = -(-max(0, days) // 7)\n    return min(25, weeks * 2)\n'))
PROGRAM
