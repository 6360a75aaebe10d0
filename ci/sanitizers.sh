#!/bin/sh
# The tests of crates/runtime, and all its ways of moving work at once, under AddressSanitizer; most
# of the tests, and those of crates/locks, under ThreadSanitizer; under Miri what it can run, which
# excludes whatever is assembly. What cannot be run is said.
#
# usage: ci/sanitizers.sh [address] [thread] [miri]     without arguments: all
set -eu
cd "$(dirname "$0")/.."

target=x86_64-unknown-linux-gnu
package="--locked --quiet --target $target --package dimmer-runtime"
# What instruments is in every compiler, though not yet promised to stay as it is.
export RUSTC_BOOTSTRAP=1

# Whether the toolchain has the runtime's library of that name; if so, builds go to a folder of their own, with these flags.
prepare() {
    if ! ls "$(rustc --print sysroot)/lib/rustlib/$target/lib/"librustc-*_rt."$1".a >/dev/null 2>&1; then
        echo "SKIPPED: $1: this toolchain has none for $target; rustup's have"
        return 1
    fi
    export RUSTFLAGS="$2" CARGO_TARGET_DIR="target/$1"
}

# Packages are several words on purpose.
# shellcheck disable=SC2086
address() {
    prepare asan "-Zsanitizer=address" || return 0
    # A thread and the kernel thread that waits at home for it have one thread-local storage; a fake stack in it would be used by
    # both. Faults are the tests' own.
    export ASAN_OPTIONS="detect_stack_use_after_return=0:handle_segv=0"
    export LSAN_OPTIONS="suppressions=$PWD/ci/sanitizers/leak.txt:print_suppressions=0"
    # Tests start the examples.
    cargo build $package --examples
    echo "SKIPPED: asan: Valgrind does not run what is instrumented"
    cargo test $package --tests -- --skip under_valgrind
    cargo run $package --example mixture 300
}

# shellcheck disable=SC2086
thread() {
    prepare tsan "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg dimmer_tsan" || return 0
    export TSAN_OPTIONS="suppressions=$PWD/ci/sanitizers/thread.txt:die_after_fork=0:handle_segv=0"
    handler=a_handler_of_a_signal_may_hand_over_work_at_any_instruction
    echo "SKIPPED: tsan: $handler: it would come in the middle of the sanitizer itself, which holds locks"
    echo "SKIPPED: tsan: regions: OnceLock is set in the standard library, which is not instrumented"
    echo "SKIPPED: tsan: instructions_are_what_they_are_called: the decoder's tables are set by the standard library's Once, which is not instrumented"
    echo "SKIPPED: tsan: tests that fork: what a child of several threads may do in it hangs now and then"
    cargo test $package --lib --test moves -- --skip "$handler" --skip instructions_are --skip child --skip other_threads_keep_off
    echo "SKIPPED: tsan: clocks, with_back_end: pace has its back end in a OnceLock"
    cargo test --locked --quiet --target $target --package dimmer-locks --lib --test it -- --skip clocks:: --skip with_back_end::
}

miri() {
    if ! cargo +nightly miri --version >/dev/null 2>&1; then
        echo "SKIPPED: miri: not installed; rustup component add --toolchain nightly miri rust-src"
        return
    fi
    # It knows the C library's system calls, and no assembly: neither threads that migrate nor workers, which stand on a core.
    export MIRIFLAGS="-Zmiri-permissive-provenance -Zmiri-many-seeds=0..16"
    echo "SKIPPED: miri: whatever is assembly: threads that migrate, delegated calls, the clock, the instructions for waiting"
    RUSTFLAGS="--cfg rustix_use_libc" CARGO_TARGET_DIR=target/miri \
        cargo +nightly miri test --locked --quiet --package dimmer-runtime --lib -- job:: slot:: word::
}

if [ $# -eq 0 ]; then set -- address thread miri; fi
for what in "$@"; do
    case $what in
    address | thread | miri) "$what" ;;
    *)
        echo "sanitizers: no such check: $what; there are address, thread, miri" >&2
        exit 2
        ;;
    esac
done
