#!/bin/sh
# The Python package: builds the wheel, installs it in a virtual environment of its own below the
# build directory, and runs its tests and notebooks. Needs Python 3.9 or later, and the package
# registries of Rust and Python for what is not there yet.
#
# usage: ci/python.sh          tests
#        ci/python.sh wheel    an optimised wheel in out/wheels, instead of older ones; no tests
set -eu
cd "$(dirname "$0")/.."

case "$*" in
'' | wheel) ;;
*)
    echo "$0: unknown arguments \`$*\`, expected \`wheel\` or nothing" >&2
    exit 2
    ;;
esac

# What is missing is no reason for tests to fail, except on CI. Without it there is no wheel.
mode=${1:-tests}
skip() {
    if [ "$mode" = wheel ]; then
        echo "$0: $1" >&2
        exit 1
    fi
    echo "SKIPPED: $1"
    [ -z "${CI:-}" ] || exit 1
    exit 0
}

python=${PYTHON:-python3}
command -v "$python" >/dev/null 2>&1 || skip "Python is not installed (apt-get install python3 python3-venv)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' || skip "$("$python" --version) is older than 3.9"

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export CARGO_TARGET_DIR="$target/python"
venv=$CARGO_TARGET_DIR/venv
if [ ! -x "$venv/bin/pip" ]; then
    rm -rf "$venv"
    "$python" -m venv "$venv" || skip "Python cannot make a virtual environment (apt-get install python3-venv)"
fi

# uv installs several packages at a time.
install() {
    "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" "$@"
}
if [ ! -x "$venv/bin/uv" ]; then
    "$venv/bin/pip" install --quiet --disable-pip-version-check uv || skip "the Python package registry is not reached"
fi
install 'maturin>=1.9,<2' || skip "the Python package registry is not reached"

cargo fetch --locked --quiet --manifest-path crates/python/Cargo.toml ||
    cargo fetch --locked --quiet --offline --manifest-path crates/python/Cargo.toml ||
    skip "crates.io is not reached, or crates/python/Cargo.lock is not up to date (cargo update --workspace --manifest-path crates/python/Cargo.toml)"

if [ "$mode" = wheel ]; then
    rm -f out/wheels/dimmer-*.whl
    "$venv/bin/maturin" build --release --locked --offline --manifest-path crates/python/Cargo.toml --out out/wheels
    exit
fi

# What it says of advisories is another step's: a line `SKIPPED` is about all of this one.
checked=$(CARGO_TARGET_DIR=$target cargo xtask dependencies crates/python)
echo "$checked" | grep -v '^SKIPPED'
cargo fmt --check --manifest-path crates/python/Cargo.toml
wheels=$CARGO_TARGET_DIR/wheels
rm -rf "$wheels"
"$venv/bin/maturin" build --quiet --profile dev --locked --offline --manifest-path crates/python/Cargo.toml --out "$wheels"
cargo clippy --quiet --locked --offline --manifest-path crates/python/Cargo.toml -- -D warnings \
    -D clippy::unwrap_used -D clippy::expect_used -D clippy::panic
wheel=$(echo "$wheels"/*.whl)
install --reinstall-package dimmer "$wheel[tests]" || skip "the Python package registry is not reached"
# Ray has no package for every Python; its tests are skipped without it.
install ray || echo "note: Ray cannot be installed"

# Type hints are right, and those of the native part are what it has.
"$venv/bin/python" -m mypy --strict --package dimmer
"$venv/bin/python" -m mypy.stubtest dimmer._dimmer
"$venv/bin/python" -m mypy --strict crates/python/tests/test_policy.py

dimmer=$target/debug/dimmer
if [ -x "$dimmer" ]; then
    DIMMER_COMMAND=$(realpath "$dimmer")
    export DIMMER_COMMAND
fi
# Not in the folder of the sources, so that the installed package is tested.
"$venv/bin/python" -m pytest --rootdir crates/python -c crates/python/pyproject.toml crates/python/tests
