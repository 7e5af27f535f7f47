#!/usr/bin/env bash
# Prints the first Python >= 3.11 that can make virtual environments ($PYTHON is tried first); fails when there is none.
set -euo pipefail
for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3.14 python3; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        command -v "$candidate"
        exit 0
    fi
done
echo "no Python >= 3.11 with the venv module found." >&2
echo "Install one (Debian, Ubuntu: apt-get install python3 python3-venv) or name it: make PYTHON=/path/to/python3.11" >&2
exit 1
