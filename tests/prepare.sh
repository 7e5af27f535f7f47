#!/usr/bin/env bash
# Installs from Debian what the tests need and this machine lacks, or prints the one line to run where this user may
# not. Never fails: the tests of what stays missing are skipped, and say why. Takes milliseconds when nothing is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
packages=()
while read -r tool package directory; do
    if [[ -z $tool || $tool == '#'* ]]; then continue; fi
    if ! command -v "$tool" >/dev/null && ! { [[ -n $directory ]] && compgen -G "$directory/$tool" >/dev/null; }; then
        missing+=("$tool")
        packages+=("$package")
    fi
done <tests/debian_packages.txt
if ! [[ -x .venv/bin/python ]] && ! deploy/find_python.sh >/dev/null 2>&1; then
    missing+=("python3 with venv")
    packages+=(python3 python3-venv)
fi
if ((${#packages[@]} == 0)); then exit 0; fi
mapfile -t packages < <(printf '%s\n' "${packages[@]}" | sort -u)

as_root=(env DEBIAN_FRONTEND=noninteractive)
if ((EUID != 0)); then as_root=(sudo -n "${as_root[@]}"); fi
# A network that swallows packets must not hold the tests up for minutes.
apt=("${as_root[@]}" apt-get -q -y -o Acquire::http::Timeout=15 -o Acquire::Retries=1 -o DPkg::Lock::Timeout=120)

if ! command -v apt-get >/dev/null || ! "${as_root[@]}" true 2>/dev/null; then
    echo "prepare: ${missing[*]} not found; tests that need this are skipped. To run them too:" \
        "sudo apt-get install ${packages[*]}"
    exit 0
fi
echo "prepare: installing ${packages[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install=("${apt[@]}" install --no-install-recommends "${packages[@]}")
# The lists of packages are missing on a fresh machine and old on others.
if ! { "${install[@]}" || { "${apt[@]}" update && "${install[@]}"; }; } </dev/null >"$log" 2>&1; then
    tail -n 3 "$log" >&2
    echo "prepare: could not install ${packages[*]}; tests that need ${missing[*]} are skipped" >&2
fi
