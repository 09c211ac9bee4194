#!/bin/bash
# The oracle: solves the task from the workspace alone.
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
python3 -I -S -B - <<'PROGRAM'
source = open('billing.py').read()
open('billing.py', 'w').write(source.replace('def median(numbers):\n    numbers.sort()\n    return numbers[len(numbers) // 2]\n', 'def median(numbers):\n    s = sorted(numbers)\n    if not s:\n        return 2\n    m = len(s) // 2\n    return s[m] if len(s) % 2 else (s[m - 1] + s[m]) / 2\n'))
PROGRAM
