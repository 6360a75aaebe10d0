# The checks of the module dimmer_pstate, in the same guest as those of kernel.sh, whose functions
# it calls. QEMU has no P-states: the module keeps them in memory (in_memory).
registers() { for cpu in $(seq 0 "$last"); do pstates requested "$cpu"; done | tr '\n' ' '; }

# untouched WHAT
untouched() { is "$1: what the processors request" "$(registers)" "$none"; }

# hold REQUESTS: in the background, as $holder.
hold() {
    pstates hold "$@" >/tmp/held &
    holder=$!
    for _ in $(seq 100); do
        if [ -s /tmp/held ]; then return 0; fi
        sleep 0.1
    done
    fails "no answer to hold $*"
}

release() {
    kill -KILL "$holder"
    wait "$holder" 2>/dev/null
}

check_pstates() {
    say "== P-states by dimmer_pstate"
    none=$(for _ in $(seq 0 "$last"); do printf '0 '; done)
    if insmod /root/dimmer_pstate.ko 2>/dev/null; then fails "loaded without P-states"; else say "ok: refused without P-states"; fi
    log_has 'dimmer_pstate: refused: ' && say "ok: the log says why" || fails "the log does not say why"
    if insmod /root/dimmer_pstate.ko in_memory=1 allow=8 2>/dev/null; then fails "allow=8 was accepted"; else say "ok: allow=8 is refused"; fi

    insmod /root/dimmer_pstate.ko in_memory=1 allow=0,3,7 || fails "dimmer_pstate does not load"
    is "limits, and what is allowed" "$(pstates info | tr '\n' ' ')" "7 0 0 P0 4000000 P3 2800000 P7 1200000 "
    is "a P-state that is not allowed" "$(pstates set 0=1)" EINVAL
    is "a P-state that does not exist" "$(pstates set 0=4000000000)" EINVAL
    is "a processor that does not exist" "$(pstates set 4000000000=3)" ENXIO
    is "of two requests the second is bad" "$(pstates set 0=3 1=1)" EINVAL
    is "more than a call may have" "$(pstates set $(for _ in $(seq 1025); do printf '0=3 '; done))" EINVAL
    untouched "after bad requests"

    hold 0=3 1=7
    is "two in one call" "$(cat /tmp/held)" taken
    is "they are requested" "$(pstates requested 0) $(pstates requested 1)" "3 7"
    is "another file's request" "$(pstates set 1=3)" EBUSY
    is "another file's, for a free processor and one that is not" "$(pstates set "$last=3" 0=3)" EBUSY
    release
    untouched "after a kill"
    is "five requests in one file, the last taken back" \
        "$(pstates follow 1=3 1=7 1=before 1=0 1=before | tr '\n' ' ')" "taken taken taken taken taken "
    untouched "after the file was closed"

    say "100 kills at random moments"
    : >/tmp/killed
    for _ in $(seq 100); do
        pstates hold 0=7 1=3 >>/tmp/killed &
        # A process lives between 0 and some 30 ms.
        usleep $(($(od -An -N2 -tu2 /dev/urandom) % 30000)) 2>/dev/null
        kill -KILL $! 2>/dev/null
        wait $! 2>/dev/null
    done
    untouched "after them"
    at_least "of them had requests" "$(grep -c taken /tmp/killed)" 1

    hold 1=3
    echo 0 >/sys/devices/system/cpu/cpu1/online
    is "a processor that is off" "$(pstates requested 1)" ENXIO
    echo 1 >/sys/devices/system/cpu/cpu1/online
    is "a processor that was off and comes again" "$(pstates requested 1)" 0
    is "it is free" "$(pstates set 1=7)" taken
    if rmmod dimmer_pstate 2>/dev/null; then fails "unloaded while a file is open"; else say "ok: it stays while a file is open"; fi
    release
    is "a measurement in memory" "$(pstates measure 0 3)" EOPNOTSUPP
    rmmod dimmer_pstate || fails "dimmer_pstate does not unload"
}

# Waits until `ask` has made all its requests.
until_asked() {
    for _ in $(seq 100); do
        sleep 0.1
        if grep -q waits /tmp/asked; then return 0; fi
    done
}

# The back end of dimmer-pace: its example `ask` runs on one processor.
check_pace() {
    say "== clocks that threads ask for, by dimmer_pstate"
    insmod /root/dimmer_pstate.ko in_memory=1 || fails "dimmer_pstate does not load"
    taskset 2 ask turbo </dev/null >/tmp/asked 2>&1
    is "the back end, and what it says" "$(tr '\n' ' ' </tmp/asked)" "by dimmer_pstate turbo: Requested waits "
    : >/tmp/asked
    for asked in "slow 7" "50 5" "51 4" "base 0" "slow withdraw 0"; do
        # `ask` ends when the last writer of its input has. The colon keeps the shell from becoming
        # `pstates`, which has another output.
        # shellcheck disable=SC2086 # several words on purpose
        (until_asked; pstates requested 1 >/tmp/requested; :) | taskset 2 ask ${asked% *} >/tmp/asked
        is "P-state of ${asked% *}" "$(cat /tmp/requested)" "${asked##* }"
    done
    untouched "after they ended"
    hold 1=3
    taskset 2 ask slow </dev/null >/tmp/asked 2>&1
    is "a processor with another program's request" "$(grep -c Unavailable /tmp/asked) $(pstates requested 1)" "1 3"
    release
    sleep 100 | taskset 2 ask slow >/tmp/asked 2>&1 &
    until_asked
    is "before a kill" "$(pstates requested 1)" 7
    killall -KILL ask sleep
    wait
    untouched "after a kill"
    rmmod dimmer_pstate
}
