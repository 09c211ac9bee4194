#!/bin/bash
# The oracle: solves the task from the workspace alone.
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
python3 -I -S -B - <<'PROGRAM'
source = open('billing.py').read()
open('billing.py', 'w').write(source.replace("def initials(name):\n    return ''.join(w[0] + '.' for w in name.split(' '))\n", "def initials(name):\n    return ''.join(w[0].upper() + '.' for w in name.split())\n"))
PROGRAM
