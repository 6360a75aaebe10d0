# The checks of core specialisation in the kernel: run by ci/test-kernel.sh, as root of a guest of
# their own. AVX (component 4 of XCR0) stands for AVX-512, which QEMU does not emulate.
# Processor 0 is wide unless said otherwise.
module=/sys/kernel/dimmer_xcr0
failed=0
skipped=0
cpus=$(nproc)
last=$((cpus - 1))
all=$(((1 << cpus) - 1))
: "${seconds:=60}"

say() { echo "$(cut -d' ' -f1 /proc/uptime) s: $*"; }

fails() {
    say "FAILED: $*"
    failed=$((failed + 1))
}

skips() {
    echo "SKIPPED: $*"
    skipped=$((skipped + 1))
}

# is WHAT FOUND EXPECTED
is() { if [ "$2" = "$3" ]; then say "ok: $1: $2"; else fails "$1: $2 instead of $3"; fi; }

# at_least WHAT FOUND LEAST
at_least() { if [ "$2" -ge "$3" ]; then say "ok: $1: $2"; else fails "$1: $2, less than $3"; fi; }

# at_most WHAT FOUND MOST
at_most() { if [ "$2" -le "$3" ]; then say "ok: $1: $2"; else fails "$1: $2, more than $3"; fi; }

# value NAME: of the last output of `wide`.
value() { sed -n "s/^$1 //p" /tmp/out; }

wide() { command wide "$@" >/tmp/out 2>&1; }

count() { cat "$module/$1"; }

scheduler_count() { dimmer-specialise counts | sed -n "s/^$1 //p"; }

# Sums up what the module counted, as loading it anew begins at 0.
faults=0 moves=0 returns=0 limits=0 allowed=0
load() { insmod /root/dimmer_xcr0.ko components=4 "$@" 2>/tmp/err; }
unload() {
    faults=$((faults + $(count faults))) moves=$((moves + $(count moves))) returns=$((returns + $(count returns)))
    limits=$((limits + $(count limits))) allowed=$((allowed + $(count allowed)))
    rmmod dimmer_xcr0
}

scheduler=
start() {
    dimmer-specialise run "$@" >/tmp/scheduler 2>&1 &
    scheduler=$!
    for _ in $(seq 600); do
        if grep -q '^dimmer-specialise: runs' /tmp/scheduler; then return 0; fi
        kill -0 "$scheduler" 2>/dev/null || break
        sleep 0.1
    done
    fails "the scheduler does not start: $(tail -n 5 /tmp/scheduler)"
    tail -n 60 /tmp/scheduler
    return 1
}

end() {
    kill "$1" "$scheduler" 2>/dev/null
    wait "$scheduler" 2>/dev/null
    scheduler=
}

narrow_all_but_0() { echo "1-$last" >"$module/narrow"; }

log_has() { dmesg | grep -q "$1"; }

mount -t debugfs none /sys/kernel/debug
mkdir -p /sys/fs/bpf && mount -t bpf none /sys/fs/bpf
say "model of preemption: $(cat /sys/kernel/debug/sched/preempt 2>/dev/null)"

say "== what is refused"
if load components=2; then fails "components=2 was accepted"; else say "ok: components=2 is refused"; fi
log_has 'refused: components has others' && say "ok: the log says why" || fails "the log does not say why components=2 was refused"
insmod /root/kvm.ko
if load; then fails "loaded beside KVM"; else say "ok: refused beside KVM"; fi
log_has 'refused: KVM' && say "ok: the log says why" || fails "the log does not say why it was refused beside KVM"
rmmod kvm
if load components=0xe0; then fails "AVX-512 was accepted, which this processor lacks"; else say "ok: refused without the components"; fi
skips "refusal of the compacted format, and everything with it: QEMU emulates the standard one alone"
skips "AVX-512: QEMU does not emulate it"

say "== the trap, threads moved by their affinity"
# Phases of 20 ms, as QEMU may take as long for what takes microseconds elsewhere.
load timeout_us=20000 || fails "the module does not load: $(cat /tmp/err) $(dmesg | tail -n 3)"
if echo "0-$last" 2>/dev/null >"$module/narrow"; then fails "all processors could be narrow"; else say "ok: not all processors can be narrow"; fi
narrow_all_but_0
is "wide processors" "$(cat $module/wide)" 0
is "XCR0 in user mode of processor 0" "$(command wide xcr0 0)" 7
is "XCR0 in user mode of processor $last" "$(command wide xcr0 "$last")" 3
wide illegal "$last"
is "an unknown instruction still ends a program" "$?" 0
wide runs "$last"
is "wide code that may run on a narrow processor alone runs on" "$(value ran_on)" "$last"
is "its wrong registers" "$(value wrong)" 0
at_least "that was allowed" "$(count allowed)" 1
before=$(count moves)
wide rounds 50 0 call
at_least "of 50 threads moved to the wide processor" "$(($(value moved) + $(value began_on_wide)))" 45
at_least "came back after a call" "$(value returned)" 40
say "move $(value move_us) us, return $(value return_us) us"
wide rounds 50 0 time
at_least "of 50 threads moved to the wide processor" "$(($(value moved) + $(value began_on_wide)))" 45
at_least "came back after a time" "$(value returned)" 40
say "move $(value move_us) us, return $(value return_us) us"
at_least "the module counted moves" "$(($(count moves) - before))" 60
at_most "threads that were moved and did not come back" "$(($(count moves) - $(count returns)))" 5
wide affinity "$all"
is "affinity given back, to children as well" "$?" 0
at_least "moves without a scheduler" "$(count without_scheduler)" 60
is "limits reached" "$(count limits)" 0

say "== KVM is loaded later"
insmod /root/kvm.ko
is "narrow processors" "$(cat $module/narrow)" ""
is "XCR0 in user mode of processor $last" "$(command wide xcr0 "$last")" 7
stays_wide() {
    if echo "$last" 2>/dev/null >"$module/narrow"; then fails "a processor is narrow $1"; else say "ok: none can be narrow $1"; fi
}
stays_wide "beside KVM"
if echo "" >"$module/narrow"; then say "ok: all may be wide beside KVM"; else fails "not all may be wide beside KVM"; fi
rmmod kvm
stays_wide "after KVM has gone"
log_has 'refused: KVM is or was loaded' && say "ok: the log says why" || fails "the log does not say why none can be narrow"
unload
load timeout_us=20000 || fails "the module does not load again: $(cat /tmp/err)"

say "== with the scheduler"
if start --wide 0 --stay-us 50000 --record /tmp/decisions; then
    is "sched_ext" "$(cat /sys/kernel/sched_ext/state) $(cat /sys/kernel/sched_ext/root/ops)" "enabled dimmer"
    is "narrow processors" "$(cat $module/narrow)" "$([ "$last" -eq 1 ] && echo 1 || echo "1-$last")"
    before=$(count without_scheduler)
    wide rounds 50 0 call
    at_least "of 50 threads moved to the wide processor" "$(($(value moved) + $(value began_on_wide)))" 45
    at_least "came back after a call" "$(value returned)" 48
    say "move $(value move_us) us, return $(value return_us) us"
    by_call=$(scheduler_count ended_by_call)
    at_least "phases ended by calls" "$by_call" 40
    wide rounds 50 0 time
    at_least "of 50 threads moved to the wide processor" "$(($(value moved) + $(value began_on_wide)))" 45
    at_least "came back after a time" "$(value returned)" 48
    say "move $(value move_us) us, return $(value return_us) us"
    at_least "phases ended by time" "$(scheduler_count ended_by_time)" 40
    is "moves by affinity meanwhile" "$(($(count without_scheduler) - before))" 0
    wide affinity "$all"
    is "affinity unchanged" "$?" 0

    # Corner case 2 of the paper: wide, but may run on narrow processors alone.
    before=$(count allowed)
    wide runs "$last"
    is "wide code that may run on a narrow processor alone runs on" "$(value ran_on)" "$last"
    is "its wrong registers" "$(value wrong)" 0
    at_least "that was allowed" "$(($(count allowed) - before))" 1
    taskset $((1 << last)) wide share 1000 0 >/dev/null &
    sharer=$!
    taskset $((1 << last)) wide spin 1000 0 >/dev/null
    wait "$sharer"
    at_least "the scheduler knew" "$(scheduler_count stuck)" 1

    # Corner case 1: not wide, but may run on wide processors alone, which run wide threads.
    wide spin 3000 0 &
    spinner=$!
    command wide share 2000 0 >/tmp/everywhere &
    taskset 1 wide share 2000 0 >/tmp/pinned 2>&1
    wait "$!"
    is "a thread for wide processors alone runs there" "$(cat /tmp/pinned)" "share 100"
    wait "$spinner"
    at_least "the scheduler knew" "$(scheduler_count pinned)" 1

    # A thread that computes with wide registers comes there again and again, although it leaves at
    # each system call (that is what asking for the time is here, where the guest's clock is no time
    # stamp). What part of its time that is depends on how soon it leaves, and so on the host.
    arrived=$(scheduler_count arrived)
    command wide spin 3000 0 >/tmp/wide &
    spinner=$!
    sleep 0.3
    command wide share 2000 0 >/tmp/other
    wait "$spinner"
    at_least "arrivals of a wide thread on the wide processor" "$(($(scheduler_count arrived) - arrived))" 3
    say "share of its time there: $(sed -n 's/^share //p' /tmp/wide)"
    at_most "share of another's there" "$(sed -n 's/^share //p' /tmp/other)" 40

    # With a thread for each processor, all with short phases: the one that runs on the wide
    # processor gives way to the others and stays, and these go back where they were.
    # On a busy host they seldom meet: up to 15 runs, until both have happened.
    stayed=$(scheduler_count stayed) went_home=$(scheduler_count went_home)
    for _ in $(seq 15); do
        others=
        for _ in $(seq "$last"); do
            command wide spin 2000 0 >/dev/null &
            others="$others $!"
        done
        command wide spin 2000 0 >/dev/null
        wait $others
        near=$(($(scheduler_count stayed) - stayed)) home=$(($(scheduler_count went_home) - went_home))
        [ "$near" -eq 0 ] || [ "$home" -eq 0 ] || break
    done
    at_least "threads that gave way and stayed near their data" "$near" 1
    at_least "threads that went on where they had been before their phase" "$home" 1

    # What user space says.
    before=$(scheduler_count inherited)
    sh -c 'dimmer-specialise hint $$ wide; wide share 1000 0; echo; dimmer-specialise hint $$ normal; sleep 0.1; wide share 1000 0' \
        >/tmp/out 2>&1
    is "hinted and inherited" "$(sed -n '1s/share //p' /tmp/out)" 100
    at_least "threads that inherited their class" "$(($(scheduler_count inherited) - before))" 1
    at_most "after the other hint" "$(sed -n '3s/share //p' /tmp/out)" 20

    # Threads of real time are none of the scheduler's.
    before=$(count without_scheduler)
    wide realtime runs "$last"
    is "a real-time thread on its processor alone" "$(value ran_on)" "$last"
    wide realtime spin 300 0
    at_least "moves by affinity of one that may move" "$(($(count without_scheduler) - before))" 1
    end -TERM
    say "decisions recorded: $(wc -l </tmp/decisions)"
    sort /tmp/decisions | uniq -c | sort -rn | head -n 400 | sed 's/^ *[0-9]* /decision: /'
    is "narrow processors when it has ended" "$(cat $module/narrow)" ""
fi
is "sched_ext" "$(cat /sys/kernel/sched_ext/state)" disabled

say "== functions and events that are named, without the module"
unload
if start --wide 0 --stay-us 50000 --function /bin/wide:named; then
    command wide call 3000 0 >/tmp/wide &
    caller=$!
    sleep 0.3
    command wide share 2000 0 >/tmp/other
    wait "$caller"
    at_least "share on the wide processor of a thread that calls the function" "$(sed -n 's/^share //p' /tmp/wide)" 60
    at_most "share of another's there" "$(sed -n 's/^share //p' /tmp/other)" 40
    # Calls without a pause are one.
    at_least "phases that began" "$(scheduler_count began)" 1
    end -TERM
fi
# The clock of the system stands for a counter of the processor's, as the guest has none.
if start --wide 0 --stay-us 50000 --event 1:0:1000000; then
    command wide share 2000 0 >/tmp/one &
    sharer=$!
    command wide share 2000 0 >/tmp/other
    wait "$sharer"
    at_least "share on the wide processor of two threads with events, the smaller" \
        "$(sed -n 's/^share //p' /tmp/one /tmp/other | sort -n | head -n 1)" 60
    end -TERM
fi
if dimmer-specialise run --wide 0 --function /bin/wide:no_such_function >/tmp/out 2>&1; then fails "an unknown function was accepted"; else say "ok: an unknown function is refused: $(tail -n 1 /tmp/out)"; fi
is "sched_ext" "$(cat /sys/kernel/sched_ext/state)" disabled
is "maps that a refused scheduler has left" "$(ls /sys/fs/bpf/dimmer 2>/dev/null)" ""
load || fails "the module does not load again"

say "== a scheduler that never moves the thread"
if start --wide 0; then
    echo 0 >"$module/narrow"
    before=$(count limits)
    sh -c 'dimmer-specialise hint $$ wide; sleep 0.1; exec wide spin 300 0' >/tmp/out 2>&1
    at_least "limits reached" "$(($(count limits) - before))" 1
    end -TERM
fi

say "== registers under stress, for $seconds s"
stress=
rounds=0
wrong=0
# under_stress SECONDS COMMAND...: COMMAND again and again while registers are compared.
under_stress() {
    command wide stress $((cpus * 3)) "$1" >/tmp/stress 2>&1 &
    stress=$!
    shift
    # Not while its threads are started. While Linux 6.12 ends a scheduler, new threads are of the
    # kernel's own scheduler already, which comes before sched_ext: if they compute without end,
    # a thread that was about to start another never goes on, and the end waits for it. Seen here once
    # in three runs.
    sleep 1
    while kill -0 "$stress" 2>/dev/null; do
        if [ $# -gt 0 ]; then "$@"; else sleep 0.2; fi
    done
    wait "$stress"
    stressed=$?
    rounds=$((rounds + $(sed -n 's/^rounds //p' /tmp/stress)))
    wrong=$((wrong + $(sed -n 's/^wrong //p' /tmp/stress)))
    if [ "$stressed" -ne 0 ]; then fails "stress ended with $stressed: $(cat /tmp/stress)"; fi
    say "rounds so far: $rounds, wrong registers: $wrong"
}
part=$((seconds / 6 > 0 ? seconds / 6 : 1))

# Two wide processors where there are enough, so that there is a choice.
start --wide "$([ "$cpus" -gt 2 ] && echo 0,2 || echo 0)" --record /tmp/decisions && under_stress $((part * 2))
sort /tmp/decisions | uniq -c | sort -rn | head -n 400 | sed 's/^ *[0-9]* /decision: /'
say "   sets changed"
changes() {
    for set in 0-$((last - 1)) "$last" 0,"$last" 0; do
        dimmer-specialise wide "$set" || fails "the wide processors could not be changed to $set"
        sleep 0.1
    done
}
under_stress "$part" changes
is "the scheduler still runs" "$(cat /sys/kernel/sched_ext/state)" enabled
say "   processors go and come"
hotplug() {
    echo 0 >"/sys/devices/system/cpu/cpu$last/online"
    sleep 0.2
    echo 1 >"/sys/devices/system/cpu/cpu$last/online"
    sleep 0.2
}
under_stress "$part" hotplug
is "the scheduler still runs" "$(cat /sys/kernel/sched_ext/state)" enabled
is "XCR0 in user mode of processor $last" "$(command wide xcr0 "$last")" 3
missed=$(count missed)
at_most "ends of the kernel's functions that were missed" "$missed" 100
say "   the scheduler killed and started"
killed() {
    end -KILL
    sleep 0.2
    start --wide 0
    sleep 0.2
}
under_stress "$part" killed
say "   the module unloaded and loaded"
reloaded() {
    end -TERM
    unload || fails "the module cannot be unloaded"
    is "XCR0 in user mode of processor $last" "$(command wide xcr0 "$last")" 7
    load || fails "the module cannot be loaded"
    narrow_all_but_0
    sleep 0.2
    start --wide 0
    sleep 0.2
}
under_stress "$part" reloaded
end -TERM
if [ -w /sys/power/pm_test ] && echo core >/sys/power/pm_test 2>/dev/null; then
    narrow_all_but_0
    echo mem >/sys/power/state || fails "the machine cannot sleep"
    is "XCR0 in user mode of processor $last after sleep" "$(command wide xcr0 "$last")" 3
    under_stress 2
else
    skips "sleep: the kernel cannot try it"
fi
unload
is "the module is gone" "$(ls -d $module 2>/dev/null)" ""
is "wrong registers in $rounds rounds" "$wrong" 0
at_least "rounds" "$rounds" $((seconds * 10))

say "== what the kernel's log has"
# Two are the kernel's own: its bandwidth of fair servers underflows where processors go under
# sched_ext (deadline.c); and sched_ext leaves work for later on a processor's run queue, which
# rq_pin_lock() of another processor finds (sched.h).
owned='kernel/sched/(deadline.c|sched.h):'
dmesg | grep -E 'WARNING|BUG|Oops|Bad FPU|hung|lockup|sched_ext.*(error|stall)' | grep -v -E "$owned" >/tmp/bad
say "of the kernel's own: $(dmesg | grep -c -E "WARNING.*$owned")"
is "lines of the kernel's log that speak of mistakes" "$(wc -l </tmp/bad)" 0
if [ -s /tmp/bad ]; then
    head -n 20 /tmp/bad
    dmesg | grep -A 20 WARNING | tail -n 80
fi

say "== what switching costs, beside the kernel's own scheduler, in turn: medians of five [least, most]"
# On an emulated processor: only the ways can be compared, and no figure is one of real hardware.
# figures WAY: measures, and keeps what `switches` prints.
figures() {
    for what in handover crowd wakes; do
        switches "$what" 500 >/tmp/out || fails "switches $what, $1"
        sed "s/^/$1 /" /tmp/out >>/tmp/costs
    done
}
# median WAY WHAT
median() {
    sed -n "s/^$1 $2 //p" /tmp/costs | sort -n |
        awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] " [" all[1] ", " all[NR] "]" }'
}
for _ in 1 2 3 4 5; do
    figures kernel
    start --wide 0 && figures scheduler
    end -TERM
    load
    narrow_all_but_0
    figures module
    start --wide 0 && figures both
    end -TERM
    unload
done
for what in handover_ns message_ns wake_median_ns wake_p99_ns; do
    say "$what: the kernel's $(median kernel $what), the module alone $(median module $what), the scheduler $(median scheduler $what), both $(median both $what)"
done

say "== control: without hooks"
load hooks=0
narrow_all_but_0
wide trips 0 "$last" 50
control=$(value wrong)
at_least "wrong registers without hooks" "$control" 1
log_has 'Bad FPU state' && say "ok: the kernel noticed" || fails "the kernel did not notice"
echo "" >"$module/narrow"
rmmod dimmer_xcr0

check_pstates
check_pace

echo "checks that failed: $failed, skipped: $skipped"
echo "counts: $cpus processors, faults $faults, moves $moves, returns $returns, allowed in place $allowed, limits $limits, rounds $rounds, wrong registers $wrong, control's wrong registers $control"
[ "$failed" -eq 0 ]
