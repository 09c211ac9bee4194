#!/bin/bash
# The oracle: solves the task from the workspace alone.
set -e
cd "${CORRAL_WORKSPACE:-/workspace}"
python3 -I -S -B - <<'PROGRAM'
import glob, json
renames, out = {"cache": "cache_value"}, {}
for name in glob.glob("etc/*.ini"):
    for line in open(name):
        line = line.split(";")[0].strip()
        if line.startswith("["):
            section = out.setdefault(line.strip("[]"), {})
        elif line and line[0] != "#":
            key, value = (part.strip() for part in line.split("=", 1))
            if key != 'timeout':
                value = {"yes": True, "no": False}.get(value, int(value) if value.isdigit() else value)
                section[renames.get(key, key)] = value
json.dump(out, open("config.json", "w"))
PROGRAM
