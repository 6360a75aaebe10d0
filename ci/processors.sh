#!/bin/sh
# Runs the tests whose outcome may depend on the processor (hooks, delegation, migration, regions, the probe) on
# processors that QEMU emulates: without AVX, XSAVE and FSGSBASE (Nehalem), with AVX2 by Intel (Haswell) and AMD (EPYC),
# and with all that QEMU can (max). The tests are those of this machine, compiled here. As many processors are emulated
# at a time as this machine has. Where something is missing, as ci/guest.sh.
#
# usage: ci/processors.sh [PROCESSOR...]     as QEMU's -cpu names them
set -eu
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || set -- Nehalem Haswell-noTSX EPYC max
built=$PWD/${CARGO_TARGET_DIR:-target}
case ${CARGO_TARGET_DIR:-} in /*) built=$CARGO_TARGET_DIR ;; esac
files=$built/processors

command -v qemu-system-x86_64 >/dev/null || {
    echo "SKIPPED: no QEMU; apt-get install --no-install-recommends qemu-system-x86"
    [ -z "${CI:-}" ] || exit 1
    exit 0
}

rm -rf "$files"
mkdir -p "$files/victims" "$files/tests" "$files/examples" "$files$built/debug"

# The tests: what `cargo test` would run.
[ -n "${DIMMER_BUILT:-}" ] || cargo build --locked --quiet --package dimmer-preload --package dimmer-boost --package dimmer-cli
cargo test --locked --quiet --no-run --message-format=json --workspace |
    grep -E '"package_id":"[^"]*#dimmer-(hook|runtime|probe|cli)@' |
    sed -n 's/.*"target":{"kind":\["\([a-z]*\)"\].*"name":"\([^"]*\)".*"executable":"\([^"]*\)".*/\1 \2 \3/p' |
    while read -r kind name executable; do
        case $kind:$name in
        example:*) strip -o "$files/examples/$name" "$executable" ;;
        lib:dimmer_hook | lib:dimmer_runtime | test:moves | test:regions) strip -o "$files/tests/$name" "$executable" ;;
        test:it)
            # Both packages' are called so.
            if grep -aq 'DIMMER_VICTIMS' "$executable"; then
                strip -o "$files/tests/commands" "$executable"
            else
                strip -o "$files/tests/probe" "$executable"
            fi
            ;;
        esac
    done

# The programs that they run, and what these need.
for source in crates/cli/tests/victims/*.c crates/cli/tests/victims/*.cc; do
    name=$(basename "${source%.*}")
    case $source in *.cc) compiler=c++ ;; *) compiler=cc ;; esac
    command -v "$compiler" >/dev/null || continue
    case $name in
    plugin) shared="-shared -fPIC" ;;
    early_thread) shared="-shared -fPIC -Wl,-z,initfirst" ;;
    *) shared= ;;
    esac
    # shellcheck disable=SC2086 # several words on purpose
    $compiler -O1 -DROUNDS=20 -fexceptions -pthread -rdynamic $shared -o "$files/victims/$name" "$source" -ldl -lm
done
strip -o "$files$built/debug/dimmer" "$built/debug/dimmer"
strip -o "$files/victims/libdimmer_preload.so" "$built/debug/libdimmer_preload.so"
ln "$files/victims/libdimmer_preload.so" "$files$built/debug"
strip -o "$files$built/debug/libdimmer_boost.so" "$built/debug/libdimmer_boost.so"
openssl=$(command -v openssl || true)
[ -z "$openssl" ] || cp --parents "$openssl" "$files"
find "$files" -type f -perm -100 -exec ldd {} + 2>/dev/null |
    sed -n 's|^[^/]*\(/[^ ]*\) (0x.*|\1|p' | sort -u | while read -r library; do
    case $library in "$files"*) ;; *) cp -L --parents "$library" "$files" ;; esac
done

# A guest takes one thread here, as one thread emulates all its processors.
status=0
# shellcheck disable=SC2016 # what the shells that are started expand
printf '%s\n' "$@" | DIMMER_GUEST_FILES=$files xargs -P "$(nproc)" -I {} sh -c '
    DIMMER_GUEST_CPU={} ci/guest.sh ci/guest/processors.sh >"$DIMMER_GUEST_FILES-{}.log" 2>&1
    status=$?
    echo "$status" >"$DIMMER_GUEST_FILES-{}.status"
    echo "processors: {}: $(tail -n 1 "$DIMMER_GUEST_FILES-{}.log")"
    exit "$status"
' || status=1
# What failed is last, where a reader looks first.
for ends in 0 '[1-9]*'; do
    for processor; do
        # shellcheck disable=SC2254 # a pattern on purpose
        case $(cat "$files-$processor.status") in $ends)
            echo "processors: $processor"
            cat "$files-$processor.log"
            ;;
        esac
    done
done
exit "$status"
