#!/bin/bash
# The oracle: solves the task from the workspace alone.
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
python3 -I -S -B - <<'PROGRAM'
source = open('export.py').read()
open('export.py', 'w').write(source.replace('def chunks(items, size):\n    return [items[i:i + size] for i in range(0, len(items) - size, size)]\n', 'def chunks(items, size):\n    return [items[i:i + size] for i in range(0, len(items), size)]\n'))
PROGRAM
