# Tests on the processor that QEMU emulates: run by ci/processors.sh. Prints the reason of each test that cannot run
# here, the whole log of what fails, and the numbers of tests at the end.
export DIMMER_VICTIMS=/victims TMPDIR=/tmp PATH=/bin:/usr/bin
mkdir -p /dev/shm && mount -t tmpfs none /dev/shm
sed -n 's/^model name\t: /processor: /p' /proc/cpuinfo | head -n 1
: >/tmp/numbers
failed=0

# What hangs is given up (s). The slowest take 130 s on a busy machine.
limit=900

# Where each thread of each process is: in the kernel, and its program counter beside the maps.
threads() {
    for process in /proc/[0-9]*; do
        [ -n "$(tr -d '\0' <"$process/cmdline" 2>/dev/null)" ] || continue
        echo "process ${process#/proc/}: $(tr '\0' ' ' <"$process/cmdline")"
        grep -E ' r-xp .*/' "$process/maps"
        for thread in "$process"/task/[0-9]*; do
            echo "  thread ${thread##*/}: $(cut -d ' ' -f 3 "$thread/stat") $(cat "$thread/wchan") $(cat "$thread/syscall")"
        done
    done 2>/dev/null
}

# run BINARY ARGUMENT...: the tests that these arguments of the test harness choose.
run() {
    binary=$1
    shift
    "/tests/$binary" --test-threads=2 --show-output "$@" >/tmp/log 2>&1 &
    tests=$!
    (
        sleep "$limit"
        threads >/tmp/threads
        kill -9 "$tests"
    ) &
    watchdog=$!
    wait "$tests"
    status=$?
    kill "$watchdog"
    if [ -s /tmp/threads ]; then
        echo "tests of $binary did not end within $limit s; where they were:"
        cat /tmp/threads
        : >/tmp/threads
    fi
    if [ "$status" -ne 0 ]; then
        failed=1
        echo "tests of $binary ended with $status:"
        cat /tmp/log
    fi
    # A test that gives several reasons is still one test.
    awk -v binary="$binary" '
        $0 == "successes:" || $0 == "failures:" { held = $0 == "successes:"; test = "" }
        /^---- .* stdout ----$/ { test = held ? $2 : "" }
        /^SKIPPED: / && test != "" { print "  skipped: " binary ": " test ": " substr($0, 10); skipped++; test = "" }
        /^test result: / {
            print $4 - skipped, $6 + 0, skipped + 0 >>"/tmp/numbers"
            print "  " binary ": " $4 - skipped " passed, " $6 + 0 " failed, " skipped + 0 " skipped, " $NF
            has_ended = 1
        }
        END { exit !has_ended }
    ' /tmp/log || {
        failed=1
        echo "tests of $binary did not end"
    }
}

# Reading of damaged ledgers depends on no processor, and takes the longest.
run dimmer_hook --skip ledger::
run dimmer_runtime
run moves
run regions
run probe silicon
run commands observe::every_call observe::labels observe::exceptions observe::jumps observe::handlers \
    observe::coroutines observe::backtraces observe::programs observe::a_program_may \
    migrate::programs delegate::programs delegate::faults delegate::ciphers
awk '{ passed += $1; failed += $2; skipped += $3 } END { print passed " passed, " failed " failed, " skipped " skipped" }' /tmp/numbers
exit "$failed"
