#!/bin/bash
# The oracle: solves the task from the workspace alone.
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
python3 -I -S -B - <<'PROGRAM'
source = open('users.py').read()
open('users.py', 'w').write(source.replace("def parse_size(text):\n    if text.endswith('k'):\n        return int(text[:-1]) * 1000\n    return int(text)\n", "def parse_size(text):\n    t = text.strip().lower()\n    for mark, power in (('k', 1), ('m', 2)):\n        if t.endswith(mark):\n            return int(t[:-1]) * 1024 ** power\n    return int(t)\n"))
PROGRAM
