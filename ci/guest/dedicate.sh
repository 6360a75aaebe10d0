# What `dimmer run --dedicate` does to a machine, and that nothing of it is left: run by ci/guest.sh, as root of a guest that nobody else
# uses. Core 0 has the hardware threads 0 and 1, core 1 has 2 and 3.

groups=/sys/fs/cgroup
failed=0

say() { echo "$(cut -d' ' -f1 /proc/uptime) s: $*"; }

fails() {
    say "FAILED: $*"
    failed=1
}

# is WHAT FOUND EXPECTED
is() { if [ "$2" = "$3" ]; then say "ok: $1: $2"; else fails "$1: $2 instead of $3"; fi; }

# has WHAT FOUND PART
has() { case $2 in *"$3"*) say "ok: $1: $3" ;; *) fails "$1: no \"$3\" in: $2" ;; esac; }

# Whether a command holds within so long (s).
patience=60
soon() {
    end=$(($(cut -d. -f1 /proc/uptime) + patience))
    while [ "$(cut -d. -f1 /proc/uptime)" -lt "$end" ]; do
        if "$@"; then return 0; fi
        sleep 0.1
    done
    fails "not within $patience s: $*"
    return 1
}

# What a process or thread may run on.
may_run() { sed -n 's/^Cpus_allowed_list:\t//p' "/proc/$1/status"; }

# All that cpusets are, and where every program is and may run. (The kernel's threads come, go and place themselves.)
everything() {
    find "$groups" -type d
    find "$groups" \( -name 'cpuset.*' -o -name cgroup.subtree_control -o -name cgroup.type \) -exec grep -H '' {} +
    awk '
        { split(FILENAME, path, "/"); process = path[3] }
        /^Name:/ { name = $2 }
        /^VmSize:/ { programs[process] = name }
        /^Cpus_allowed_list:/ { may[process] = $2 }
        FILENAME ~ /cgroup$/ { groups[process] = groups[process] " " $0 }
        END { for (process in programs) print programs[process], may[process] groups[process] }
    ' /proc/[0-9]*/status /proc/[0-9]*/cgroup 2>/dev/null | grep -vE '^(exe|awk|grep|sort|find) '
    find /run/dimmer -name 'journal.*' 2>/dev/null
}

# same WHAT: whether everything is as it was when it was kept in /tmp/before.
same() {
    everything | sort -u >/tmp/after
    if cmp -s /tmp/before /tmp/after; then
        say "ok: $1: everything is as before"
    else
        fails "$1: something has changed"
        diff /tmp/before /tmp/after
    fi
}

# The threads of a process that are workers: number, hardware threads, control group.
workers() {
    for thread in "/proc/$1/task/"[0-9]*; do
        case $(cat "$thread/comm" 2>/dev/null) in
        dimmer-*) echo "$(may_run "$1/task/${thread##*/}") $(sed -n '/^[0-9]*:\(cpuset\)\?:/{s///p;q}' "$thread/cgroup")" ;;
        esac
    done | sort
}

may_run_on() { [ "$(may_run "$1")" = "$2" ]; }
number_of_workers() { workers "$1" | wc -l; }
has_workers() { [ "$(number_of_workers "$1")" -eq "$2" ]; }
processes() { pidof calls | tr ' ' '\n' | sort -n; }
has_processes() { [ "$(processes | wc -l)" -eq "$1" ]; }
has_ended() { ! kill -0 "$1" 2>/dev/null; }

# Starts a program of two threads and a child with calls to be moved, by a command, and waits until there are so many workers in each process.
start() {
    wanted=$1
    shift
    touch /tmp/go
    "$@" --json=/tmp/json -- calls /tmp/go 2 2>/tmp/told &
    dimmer=$!
    soon has_processes 2 || cat /tmp/told
    parent=$(processes | head -n 1)
    child=$(processes | tail -n 1)
    soon has_workers "$parent" "$wanted" && soon has_workers "$child" "$wanted"
}

# Ends what `start` has started.
finish() {
    rm -f /tmp/go
    wait "$dimmer"
    is "$1: status" $? 0
    if grep -q '"moved": [1-9]' /tmp/json; then say "ok: $1: calls were moved"; else fails "$1: no call was moved"; fi
}

# refused WHAT REASON COMMAND...
refused() {
    what=$1 reason=$2
    shift 2
    "$@" -- calls /tmp/none 1 2>/tmp/told
    is "$what: status" $? 125
    has "$what" "$(tr '\n' ' ' </tmp/told)" "$reason"
    same "$what"
}

# What is so while these CPUs are dedicated: everybody but the program's workers, of which there is one for each, has the others.
dedicated() {
    what=$1 cpus=$2 others=$3
    own=$(find "$groups" -type d -name 'dimmer.*' | head -n 1)
    is "$what: the group" "$(cat "$own/cpuset.cpus") $(cat "$own/cpuset.cpus.partition")" "$cpus isolated"
    is "$what: everybody" "$(may_run 1) $(may_run "$bystander")" "$others $others"
    each=$(echo "$cpus" | tr ',-' '\n\n' | sed "s|\$| ${own#"$groups"}|" | tr '\n' ',')
    is "$what: workers" "$(workers "$parent" | tr '\n' ',')" "$each"
    is "$what: workers of the child" "$(workers "$child" | tr '\n' ',')" "$each"
    is "$what: the program" "$(may_run "$parent") $(may_run "$child")" "${4:-$others $others}"
}

before() { everything | sort -u >/tmp/before; }

# The kernel is as old as these numbers, or older than the others.
is_before() { [ "$(printf '%s\n%s.0\n' "$(uname -r)" "$1" | sort -V | head -n 1)" != "$1.0" ]; }

migrate="dimmer run --migrate=kept --dedicate"
sleep 10000 &
bystander=$!
before

has "the topology" "$(dimmer doctor --all)" "4 hardware threads on 2 cores"
has "the capability" "$(dimmer doctor --all)" "partitions (cgroup v2) below $groups: 0-3"

say "dedicated cores, from the begin to the end"
# shellcheck disable=SC2086 # $migrate is several words, here and below
start 2 $migrate --cpus 2,3
dedicated "dedicated" 2-3 0-1
finish "dedicated"
same "the program's end"

say "a signal; one hardware thread of a core alone"
start 1 $migrate --cpus 3
dedicated "a sibling" 3 0-2
kill -TERM "$dimmer"
wait "$dimmer"
is "told to end: status" $? 143
rm -f /tmp/go
soon has_processes 0
same "SIGTERM"

say "a crash; a whole core by itself, and where who starts it may run"
start 2 taskset d $migrate
dedicated "a whole core" 2-3 0-1 "0 0"
kill -KILL "$dimmer"
wait "$dimmer" 2>/dev/null
dedicated "killed" 2-3 0-1 "0 0"
dimmer restore >/tmp/told 2>&1
is "restored: status" $? 0
rm -f /tmp/go
soon has_processes 0
same "dimmer restore"

say "what cannot be had"
mkdir "$groups/jobs"
echo +cpuset >"$groups/cgroup.subtree_control"
echo 3 >"$groups/jobs/cpuset.cpus"
echo root >"$groups/jobs/cpuset.cpus.partition"
before
refused "somebody else's" "cpu 3 is for the control group $groups/jobs alone" $migrate --cpus 2,3
refused "half of a core" "the control group $groups/jobs alone" $migrate --cpus 3
echo member >"$groups/jobs/cpuset.cpus.partition"
before
refused "somebody else's as well" "the kernel made no partition of cpu 3" $migrate --cpus 3
rmdir "$groups/jobs"
echo -cpuset >"$groups/cgroup.subtree_control"
echo 0 >/sys/devices/system/cpu/cpu3/online
before
refused "offline" "cpu 3 is offline" $migrate --cpus 3
if is_before 6.5; then
    refused "another is offline" "would keep everybody off cpu 3 even when it is online again" $migrate --cpus 2
fi
echo 0 >/sys/devices/system/cpu/cpu2/online
before
refused "the only core" "no core to move calls to" $migrate
refused "all of it" "no core would be left for the program itself" $migrate --cpus 0,1
for cpu in 2 3; do echo 1 >"/sys/devices/system/cpu/cpu$cpu/online"; done

say "threads that are pinned"
taskset 1 sleep 10000 &
first=$!
taskset 8 sleep 10000 &
last=$!
before
if is_before 6.2; then
    refused "pinned" "is pinned to cpu" $migrate --cpus 3
else
    start 2 $migrate --cpus 2,3
    is "pinned threads" "$(may_run "$first") $(may_run "$last")" "0 0-1"
    finish "pinned"
    same "pinned threads"
fi
kill "$first" "$last"
wait "$first" "$last" 2>/dev/null

say "somebody who relies on cpusets meanwhile"
mkdir "$groups/jobs"
before
start 2 $migrate --cpus 2,3
echo 0 >"$groups/jobs/cpuset.cpus"
finish "somebody relies on it"
has "it is told" "$(cat /tmp/told)" "left $groups/cgroup.subtree_control at +cpuset"
is "it is left" "$(cat "$groups/cgroup.subtree_control" "$groups/jobs/cpuset.cpus" | tr '\n' ' ')" "cpuset 0 "
echo -cpuset >"$groups/cgroup.subtree_control"
same "somebody relied on it"
rmdir "$groups/jobs"

say "a group below the root"
mkdir "$groups/session"
echo $$ >"$groups/session/cgroup.procs"
before
if is_before 6.7; then
    refused "a group below the root" "makes partitions below other partitions alone" $migrate --cpus 3
else
    start 2 $migrate --cpus 2,3
    dedicated "a group below the root" 2-3 0-1
    finish "a group below the root"
    same "a group below the root"
fi
echo $$ >"$groups/cgroup.procs"
rmdir "$groups/session"

say "the policy server, which needs no cpusets"
before
dimmerd --verbose 2>/tmp/log &
server=$!
soon test -S /run/dimmer/socket
start 2 dimmer run --auto=kept
is "served: workers" "$(workers "$parent" | tr '\n' ',')" "2 /,3 /,"
# The program keeps its threads off these cores while the server dedicates them: when it first tries what moving
# calls brings, which was seen to take from 1 to 155 s in emulated guests.
patience=600
if soon may_run_on "$parent" 0-1; then say "ok: served: the program: 0-1"; fi
patience=60
is "served: everybody" "$(may_run "$bystander")" "0-3"
refused_by_server=$(dimmer run --auto=kept --dedicate -- calls /tmp/none 1 2>&1)
has "served and dedicated" "$refused_by_server" "the policy server's cores are for all of its programs"
finish "served"
has "served: the server" "$(cat /tmp/log)" "dedicated cores cores=1"
kill "$server"
wait "$server"
is "the server: status" $? 0
has "the server has given back" "$(grep 'dedicated cores' /tmp/log | tail -n 1)" "cores=0"
same "the policy server"

say "the old hierarchy"
umount "$groups"
groups=/tmp/cpusets
mkdir "$groups"
# The kernel takes its time to let go of the new one's.
for _ in $(seq 50); do
    if mount -t cgroup -o cpuset none "$groups" 2>/dev/null; then break; fi
    sleep 0.1
done
if grep -q " $groups cgroup " /proc/mounts; then
    taskset 9 sleep 10000 &
    pinned=$!
    before
    if is_before 6.2; then refused "old: pinned" "is pinned to cpu" $migrate --cpus 3; fi
    kill "$pinned"
    wait "$pinned" 2>/dev/null
    before
    start 2 $migrate --cpus 2,3
    own=$(find "$groups" -type d -name 'dimmer.*' ! -name '*.others')
    is "old: the group" "$(cat "$own/cpuset.cpus" "$own/cpuset.cpu_exclusive" "$own/cpuset.sched_load_balance" | tr '\n' ' ')" "2-3 1 0 "
    is "old: everybody" "$(may_run 1) $(may_run "$bystander") $(may_run "$parent")" "0-1 0-1 0-1"
    group=${own#"$groups"}
    is "old: workers of the child" "$(workers "$child" | tr '\n' ',')" "2 $group,3 $group,"
    kill -KILL "$dimmer"
    wait "$dimmer" 2>/dev/null
    dimmer restore >/tmp/told 2>&1
    is "old: restored: status" $? 0
    rm -f /tmp/go
    soon has_processes 0
    same "old: dimmer restore"
else
    say "this kernel has none"
fi

exit "$failed"
