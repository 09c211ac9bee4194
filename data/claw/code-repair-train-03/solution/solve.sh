#!/bin/bash
# The oracle: solves the task from the workspace alone.
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
python3 -I -S -B - <<'PROGRAM'
source = open('users.py').read()
open('users.py', 'w').write(source.replace('def moving_mean(numbers):\n    return [sum(numbers[i:i + 2]) / 2 for i in range(len(numbers))]\n', 'def moving_mean(numbers):\n    return [sum(numbers[i:i + 2]) / 2 for i in range(len(numbers) - 2 + 1)]\n'))
PROGRAM
