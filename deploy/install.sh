#!/bin/sh
# Installs the broker and the keelmq command of this bundle into a new directory. Needs Python of the version that the
# bundle was built for (with the module venv), and neither a network nor pip.
#   ./install.sh DIRECTORY          another Python: PYTHON=/path/to/python ./install.sh DIRECTORY
set -eu
umask 022 # the program is no secret, and the unit of systemd runs it as a user of its own
here=$(cd "$(dirname "$0")" && pwd)
target=${1:?usage: install.sh DIRECTORY}
built_for=$(cat "$here/PYTHON_VERSION")
python=${PYTHON:-python$built_for}
if ! command -v "$python" >/dev/null; then
    echo "install.sh: no $python found; install it, or name it: PYTHON=/path/to/python$built_for $0 $target" >&2
    exit 1
fi
found=$("$python" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [ "$found" != "$built_for" ]; then
    echo "install.sh: $python is Python $found; this bundle is for Python $built_for" >&2
    exit 1
fi
if [ -e "$target" ]; then
    echo "install.sh: $target is there already; choose another directory or remove it" >&2
    exit 1
fi
"$python" -I - "$here" <<'END' || exit 1
import hashlib, pathlib, sys
here = pathlib.Path(sys.argv[1])
for line in (here / "SHA256SUMS").read_text().splitlines():
    digest, name = line.split("  ", 1)
    if not (here / name).is_file() or hashlib.sha256((here / name).read_bytes()).hexdigest() != digest:
        sys.exit(f"install.sh: {name} is missing or damaged; copy the bundle again")
END
# What failed or was interrupted is not taken for an installation, and not in the way of the next one.
trap 'rm -rf "$target"' EXIT
trap 'exit 130' HUP INT TERM
"$python" -I -m venv --without-pip "$target"
compile=--compile
[ ! -f "$here/bytecode.tar" ] || compile=--no-compile
# A pip that was unpacked starts a second sooner than one in its archive.
"$target/bin/python" -I - "$here" "$target/pip" <<'END'
import pathlib, sys, sysconfig, tarfile, zipfile
here, pip = map(pathlib.Path, sys.argv[1:])
how = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from Python 3.11.4 on; the sums are right
for wheel in here.glob("pip/pip-*.whl"):
    zipfile.ZipFile(wheel).extractall(pip)
for name, place in (("bytecode.tar", sysconfig.get_path("purelib")), ("pip-bytecode.tar", pip)):
    if (here / name).exists():
        with tarfile.open(here / name) as archive:
            archive.extractall(place, **how)
END
# Isolated: variables such as PIP_TARGET, and the files of pip, are meant for other installations.
PIP_CONFIG_FILE=/dev/null "$target/bin/python" -I "$target/pip/pip" --isolated install --quiet \
    --disable-pip-version-check --no-cache-dir --no-index --no-deps $compile "$here"/wheels/*.whl
rm -rf "$target/pip"
keelmqd() { # without what may be set here for other programs
    env -i PATH="$PATH" ${LD_LIBRARY_PATH:+"LD_LIBRARY_PATH=$LD_LIBRARY_PATH"} "$target/bin/keelmqd" "$@"
}
keelmqd --check-config >/dev/null # what a node needs can be loaded on this host
keelmqd --version
trap - EXIT
