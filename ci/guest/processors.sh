# Tests on the processor that QEMU emulates: run by ci/processors.sh.
export DIMMER_VICTIMS=/victims TMPDIR=/tmp
mount -t tmpfs none /dev/shm 2>/dev/null || { mkdir -p /dev/shm && mount -t tmpfs none /dev/shm; }
sed -n 's/^model name\t: /processor: /p;' /proc/cpuinfo | head -n 1
failed=0

# run BINARY FILTER...: the tests whose names contain one of these.
run() {
    binary=$1
    shift
    echo "tests of $binary: $*"
    "/tests/$binary" --test-threads=2 --show-output "$@" >/tmp/log 2>&1 || {
        failed=1
        cat /tmp/log
    }
    grep -E '^(test result|SKIPPED)' /tmp/log | sed 's/^/  /'
}

export PATH=/bin:/usr/bin
run dimmer_hook
run dimmer_runtime
run moves
run regions
run probe silicon
run commands observe::every_call observe::labels observe::exceptions observe::jumps observe::handlers \
    observe::coroutines observe::backtraces observe::programs observe::a_program_may \
    borrow::programs offload::programs offload::faults offload::ciphers
exit "$failed"
