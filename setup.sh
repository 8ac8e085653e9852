#!/bin/sh
# Makes .venv from uv.lock. Finds uv, or installs it for this project alone; finds a Python that fits, or lets uv get one.
set -eu
cd "$(dirname "$0")"

UV_VERSION=0.13.8 # any recent one reads the lock; this one is known to
BEYOND=15 # Python 3.15: some of its wheels are not in uv.lock
TOOLS=.framehaul/tools

say() { printf 'framehaul: %s\n' "$*" >&2; }

find_uv() {
    if command -v uv >/dev/null 2>&1; then
        command -v uv
    elif [ -x "$TOOLS/bin/uv" ]; then
        echo "$TOOLS/bin/uv"
    else
        say "installing uv into $TOOLS"
        for any_python in python3 python ${python:+"$python"}; do
            if "$any_python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' >/dev/null 2>&1; then
                mkdir -p .framehaul && chmod 711 .framehaul
                if "$any_python" -m venv "$TOOLS" >&2 && "$TOOLS/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$UV_VERSION" >&2; then
                    echo "$TOOLS/bin/uv"
                    return
                fi
                rm -rf "$TOOLS"
            fi
        done
        say "cannot install uv: it takes a Python 3 with the modules venv and pip (on Debian: apt install python3-venv)."
        say "Install uv yourself (https://docs.astral.sh/uv/), or use conda: conda env create -f environment.yml"
        exit 1
    fi
}

# The first interpreter that runs and that uv.lock has wheels for: another has to compile, and is taken only when it is
# named. Some, such as pyenv's shims, are on PATH and do not run.
find_python() {
    for candidate in ${FRAMEHAUL_PYTHON:+"$FRAMEHAUL_PYTHON"} python3.13 python3.12 python3.14 python3 python \
        "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/3.13*/bin/python "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/3.1[24-9]*/bin/python; do
        before=$BEYOND
        [ "$candidate" != "${FRAMEHAUL_PYTHON:-}" ] || before=99
        if "$candidate" -c "import sys; sys.exit(not (3, 12) <= sys.version_info < (3, $before))" >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
}

if [ -z "${FRAMEHAUL_PYTHON:-}" ] && [ -f .env ]; then
    FRAMEHAUL_PYTHON=$(sed -n 's/^\(export \)\{0,1\}FRAMEHAUL_PYTHON=//p' .env | tail -n 1)
    FRAMEHAUL_PYTHON=${FRAMEHAUL_PYTHON#[\"\']}
    FRAMEHAUL_PYTHON=${FRAMEHAUL_PYTHON%[\"\']}
fi
say "making the environment in .venv from uv.lock: about half a minute, longer when packages must be downloaded"
python=$(find_python)
uv=$(find_uv)
if [ -n "${FRAMEHAUL_PYTHON:-}" ] && [ "$python" != "$FRAMEHAUL_PYTHON" ]; then
    say "FRAMEHAUL_PYTHON=$FRAMEHAUL_PYTHON does not run or is older than 3.12; name another or unset it"
    exit 1
fi
# The python of an activated environment stands for the one beneath it, which is what uv builds on.
[ -z "$python" ] || python=$("$python" -c 'import sys; print(sys._base_executable)')
# A home that cannot be written, such as a service's, holds no cache of uv.
cache=$("$uv" cache dir) || true
if [ -n "$cache" ] && ! { mkdir -p "$cache" && [ -w "$cache" ]; } 2>/dev/null; then
    export UV_CACHE_DIR="$PWD/.framehaul/cache"
fi
quiet=--quiet
[ ! -t 2 ] || quiet= # a terminal shows uv's progress
if ! UV_PROJECT_ENVIRONMENT=.venv "$uv" sync --locked $quiet --all-extras --python "${python:->=3.12,<3.$BEYOND}"; then
    [ -n "$python" ] || say "no Python from 3.12 to before 3.$BEYOND was found, and uv could not get one: install one, or set FRAMEHAUL_PYTHON to its path"
    exit 1
fi
# Loops that more than a few thousand rows need are compiled once per machine: here, or by the first call.
.venv/bin/python -m framehaul compile 2>/dev/null || say "python -m framehaul compile failed: the first calls take some seconds longer"
touch .venv/.complete
