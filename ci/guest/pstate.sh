# `dimmer probe --mode pstate` and `dimmer pstate tune` by the real files of cpufreq, under a driver that has no clock
# behind it (ci/kernel/made_up_cpufreq.c): run by ci/pstate.sh, as root, with the modules in /root.

failed=0
policies=/sys/devices/system/cpu/cpufreq

say() { echo "$(cut -d' ' -f1 /proc/uptime) s: $*"; }

fails() {
    say "FAILED: $*"
    failed=1
}

# is WHAT FOUND EXPECTED
is() { if [ "$2" = "$3" ]; then say "ok: $1: $2"; else fails "$1: $2 instead of $3"; fi; }

# has WHAT FOUND PART
has() { case $2 in *"$3"*) say "ok: $1: $3" ;; *) fails "$1: no \"$3\" in: $2" ;; esac; }

# All settings. The speed is what the governor `userspace` was asked for; a clock is no setting.
settings() {
    grep -H '' "$policies"/boost "$policies"/policy*/scaling_governor "$policies"/policy*/scaling_m*_freq
    find /run/dimmer -name 'journal.*' 2>/dev/null
}

# same WHAT: whether all settings are as at first.
same() {
    settings >/tmp/after
    if cmp -s /tmp/before /tmp/after; then
        say "ok: $1: all settings are as before"
    else
        fails "$1: settings have changed"
        diff /tmp/before /tmp/after
    fi
}

# changed PROCESS: waits until the process has changed settings.
changed() {
    for _ in $(seq 600); do
        settings >/tmp/after
        if ! cmp -s /tmp/before /tmp/after; then return; fi
        kill -0 "$1" 2>/dev/null || break
        sleep 0.1
    done
    fails "no settings were changed"
}

# killed_tune WHAT: kills `dimmer pstate tune` while it is in force, and has what it left restored.
killed_tune() {
    dimmer pstate tune >/dev/null 2>&1 &
    changed $!
    sleep 1
    kill -9 $!
    wait $!
    dimmer restore >/dev/null
    same "$1"
}

lacks=$(dimmer probe --mode pstate 2>&1)
is "without a driver, the status" "$?" 1
has "without a driver" "$lacks" "no policy under $policies"
[ ! -e /root/cpufreq_userspace.ko ] || insmod /root/cpufreq_userspace.ko
if ! insmod /root/made_up_cpufreq.ko delay_us=2000; then
    dmesg | tail -n 3
    fails "no module"
    exit 1
fi
echo 1 >"$policies/boost"
settings >/tmp/before
cat /tmp/before
has "the survey" "$(dimmer doctor --all)" "every policy is writable"

dimmer -q probe --mode pstate --repetitions 40 --cpu 1 --json=/tmp/found >/tmp/text
is "the status" "$?" 0
cat /tmp/text
found=$(cat /tmp/found)
has "what is written" "$found" '"requested_by": "scaling_setspeed"'
is "pairs of five points" "$(grep -c '"from_khz"' /tmp/found)" 20
# The median follows the line that opens the quantity.
fast=$(awk '/"request_ns": [^n]/ { getline; gsub(/[^0-9.]/, ""); if ($0 < 1000000) fast++ } END { print fast + 0 }' /tmp/found)
is "requests that take less than half of the driver's 2 ms" "$fast" 0
same "after the end"

dimmer probe --mode pstate --repetitions 100000 --cpu 1 >/dev/null 2>/tmp/said &
changed $!
is "the governor meanwhile" "$(cat "$policies/policy1/scaling_governor")" userspace
# This shell has background commands ignore Ctrl-C.
kill -TERM $!
wait $!
is "the status after SIGTERM" "$?" 143
same "after SIGTERM"

dimmer probe --mode pstate --repetitions 100000 --cpu 1 >/dev/null 2>&1 &
changed $!
sleep 1
kill -9 $!
wait $!
is "the governor that a kill leaves" "$(cat "$policies/policy1/scaling_governor")" userspace
dimmer restore
is "the status of restore" "$?" 0
same "after a kill and restore"

dimmer pstate tune --list
same "after a list"
meanwhile=$(dimmer pstate tune -- cat "$policies/boost" "$policies/policy1/scaling_governor" "$policies/policy1/scaling_min_freq" "$policies/policy1/scaling_max_freq" 2>/tmp/said)
is "the status of tune" "$?" 0
is "what is set meanwhile" "$meanwhile" "$(printf '0\nperformance\n3000000\n3000000')"
cat /tmp/said
same "after tune"
killed_tune "after a killed tune and restore"

# The kernel writes the upper limits itself when turbo is switched: a user's one must come back.
echo 2400000 >"$policies/policy0/scaling_max_freq"
echo 3000000 >"$policies/policy1/scaling_max_freq"
settings >/tmp/before
meanwhile=$(dimmer pstate tune -- cat "$policies/boost" "$policies"/policy[01]/scaling_m??_freq 2>/tmp/said)
is "what is set meanwhile" "$meanwhile" "$(printf '0\n3000000\n3000000\n3000000\n3000000')"
same "after tune with limits of a user's"
killed_tune "after a killed tune with limits of a user's, and restore"
exit "$failed"
