#!/bin/sh
# Runs a script in a Linux of its own, booted in QEMU with two cores of two hardware threads each, together with the
# commands as they are built here: for what a test must not do to the machine it runs on, and for kernels and
# processors other than its own.
#
# usage: ci/guest.sh [SCRIPT]     without one: ci/guest/dedicate.sh
#
# DIMMER_GUEST_CPU names a processor that QEMU emulates, as `-cpu` does; DIMMER_GUEST_FILES a directory of files that
# the guest has as well, from the root on.
# DIMMER_GUEST_KERNEL names the kernel's image; otherwise it is the newest that apt knows, downloaded below target/
# and not installed. With KVM where that boots, else emulated. Prints what the script prints, and ends as it ends;
# what is missing is printed after `SKIPPED:`, and fails where CI is set. With DIMMER_BUILT set,
# nothing is built: the guest gets the commands that are there.
set -eu
cd "$(dirname "$0")/.."

script=${1:-ci/guest/dedicate.sh}
built=${CARGO_TARGET_DIR:-target}
shared=$built/guest
# Guests of several processors may run at a time.
work=$shared/$(basename "$script" .sh)${DIMMER_GUEST_CPU:+-$DIMMER_GUEST_CPU}
# What hangs is given up (s).
limit=1800
# How long a guest may take until its first line (s): with KVM one that boots takes a second. Of 60 emulated ones, two at
# a time on two CPUs under a load of four to eight, each took 4 to 14.
first_line_kvm=8
first_line_tcg=90
attempts=3

skip() {
    echo "SKIPPED: guest: $1"
    exit 0
}

# Something that can be had is missing.
lacks() {
    if [ -n "${CI:-}" ]; then
        echo "guest: $1" >&2
        exit 1
    fi
    skip "$1"
}

[ "$(uname -m)" = x86_64 ] || skip "the guest is an x86-64 machine, as its kernel and its programs are"
command -v qemu-system-x86_64 >/dev/null || lacks "no QEMU; apt-get install --no-install-recommends qemu-system-x86"
busybox=$(command -v busybox) || lacks "no busybox; apt-get install busybox-static"
if ldd "$busybox" >/dev/null 2>&1; then lacks "busybox is not linked statically; apt-get install busybox-static"; fi
mkdir -p "$shared"

newest_kernel() { find "$shared/kernel" -name 'vmlinuz-*' 2>/dev/null | sort -V | tail -n 1; }

download_kernel() {
    command -v apt-get >/dev/null || lacks "no kernel; DIMMER_GUEST_KERNEL names one (a vmlinuz)"
    package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image\)/\1/p' | head -n 1)
    [ -n "$package" ] || lacks "apt knows no linux-image-cloud-amd64; DIMMER_GUEST_KERNEL names a kernel"
    rm -rf "$shared/download" "$shared/unpacked" && mkdir "$shared/download"
    (cd "$shared/download" && apt-get -q download "$package") >"$shared/download.log" 2>&1 ||
        lacks "apt-get download $package: $(tail -n 1 "$shared/download.log")"
    dpkg-deb -x "$shared"/download/*.deb "$shared/unpacked"
    mv "$shared/unpacked" "$shared/kernel"
    rm -rf "$shared/download"
}

# What is in the guest: busybox, the commands with what they load, and the scripts.
prepare() {
    [ -n "${DIMMER_BUILT:-}" ] ||
        cargo build --locked --quiet --package dimmer-cli --package dimmer-daemon --package dimmer-preload
    root=$work/root
    rm -rf "$work"
    mkdir -p "$root/bin" "$root/proc" "$root/sys" "$root/dev" "$root/run" "$root/tmp" "$root/root"
    cp "$busybox" "$root/bin/busybox"
    cp ci/guest/init "$root/init"
    cp "$script" "$root/script"
    cc -O1 -pthread -rdynamic -o "$root/bin/calls" ci/guest/calls.c
    for file in dimmer dimmerd libdimmer_preload.so; do
        strip -o "$root/bin/$file" "$built/debug/$file"
        ldd "$built/debug/$file"
    done | sed -n 's|^[^/]*\(/[^ ]*\) (0x.*|\1|p' | sort -u | while read -r library; do
        cp -L --parents "$library" "$root"
    done
    [ -z "${DIMMER_GUEST_FILES:-}" ] || cp -a "$DIMMER_GUEST_FILES/." "$root"
    (cd "$root" && find . | "$busybox" cpio --quiet -o -H newc) >"$work/initramfs"
    rm -rf "$root"
}

kernel=${DIMMER_GUEST_KERNEL:-}
if [ -z "$kernel" ]; then
    # Once, for guests that start together.
    exec 9>"$shared/lock"
    flock 9
    [ -n "$(newest_kernel)" ] || download_kernel
    exec 9>&-
    kernel=$(newest_kernel)
fi
[ -r "$kernel" ] || skip "there is no kernel $kernel"
prepare

running=
stop() {
    [ -n "$running" ] || return 0
    kill "$running" 2>/dev/null || true
    wait "$running" || true
    running=
}
trap stop EXIT
# A shell that a signal ends runs no trap for EXIT, unless that signal has its own.
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# boots SECONDS HOW: starts a guest; whether it prints its first line within so many seconds.
boots() {
    : >"$work/console"
    # shellcheck disable=SC2086 # several words on purpose
    timeout "$limit" qemu-system-x86_64 $2 -smp 4,cores=2,threads=2 -m 1536 -M q35 -display none -nodefaults \
        -no-reboot -serial "file:$work/console" -kernel "$kernel" -initrd "$work/initramfs" \
        -append "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off" </dev/null >"$work/qemu.log" 2>&1 &
    running=$!
    for _ in $(seq "$(($1 * 10))"); do
        if grep -q '^guest: ' "$work/console"; then return 0; fi
        kill -0 "$running" 2>/dev/null || break
        sleep 0.1
    done
    # It may have ended meanwhile.
    if grep -q '^guest: ' "$work/console"; then return 0; fi
    stop
    return 1
}

# One thread emulates all processors. With one for each, QEMU before 8.1 translates code that another processor is
# changing; when Linux patches itself, all of them may then meet a breakpoint for ever that is no longer there.
emulated="-accel tcg,thread=single -cpu ${DIMMER_GUEST_CPU:-Haswell-noTSX}"
how=KVM
if [ ! -w /dev/kvm ] || [ -n "${DIMMER_GUEST_CPU:-}" ] || ! boots "$first_line_kvm" "-accel kvm -cpu host,topoext=on"; then
    how=TCG
    attempt=1
    until boots "$first_line_tcg" "$emulated"; do
        echo "guest: attempt $attempt of $attempts ended or printed nothing for $first_line_tcg s; see $work/qemu.log"
        if [ "$attempt" -eq "$attempts" ]; then exit 1; fi
        attempt=$((attempt + 1))
    done
fi
wait "$running" || true
running=
tr -d '\r' <"$work/console" | sed -n "s/^guest: Linux/& ($how)/; /^guest: ends/q; p"
status=$(tr -d '\r' <"$work/console" | sed -n 's/^guest: ends with //p')
if [ -z "$status" ]; then
    echo "guest: no end within $limit s, or none at all; see $work/console and $work/qemu.log" >&2
    exit 1
fi
exit "$status"
