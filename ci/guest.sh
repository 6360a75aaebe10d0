#!/bin/sh
# Runs a script in a Linux of its own, booted in QEMU with two cores of two hardware threads each, together with the commands as they are
# built here: for what a test must not do to the machine it runs on, and for kernels other than its own.
#
# usage: ci/guest.sh [SCRIPT]     without one: ci/guest/dedicate.sh
#
# DIMMER_GUEST_CPU names a processor that QEMU emulates, as `-cpu` does; DIMMER_GUEST_FILES a directory of
# files that the guest has as well, from the root on.
# DIMMER_GUEST_KERNEL names the kernel's image; otherwise it is the newest that apt knows, downloaded below target/ and not installed. With
# KVM where that boots, else emulated. Prints what the script prints, and ends as it ends; what is missing is said after `SKIPPED:`.
set -eu
cd "$(dirname "$0")/.."

script=${1:-ci/guest/dedicate.sh}
built=${CARGO_TARGET_DIR:-target}
work=$built/guest
# How long it may take from the start to the script's end (s), and until the first line of it shows that KVM boots.
limit=${DIMMER_GUEST_SECONDS:-300}
first_line=8

skip() {
    echo "SKIPPED: guest: $1"
    exit 0
}

[ "$(uname -m)" = x86_64 ] || skip "the guest is an x86-64 machine, as its kernel and its programs are"
command -v qemu-system-x86_64 >/dev/null || skip "no QEMU; apt-get install --no-install-recommends qemu-system-x86"
busybox=$(command -v busybox) || skip "no busybox; apt-get install busybox-static"
if ldd "$busybox" >/dev/null 2>&1; then skip "busybox is not linked statically; apt-get install busybox-static"; fi
mkdir -p "$work"

newest_kernel() { find "$work/kernel" -name 'vmlinuz-*' 2>/dev/null | sort -V | tail -n 1; }

kernel=${DIMMER_GUEST_KERNEL:-$(newest_kernel)}
if [ -z "$kernel" ]; then
    command -v apt-get >/dev/null || skip "no kernel; DIMMER_GUEST_KERNEL names one (a vmlinuz)"
    package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image\)/\1/p' | head -n 1)
    [ -n "$package" ] || skip "apt knows no linux-image-cloud-amd64; DIMMER_GUEST_KERNEL names a kernel"
    rm -rf "$work/download" && mkdir "$work/download"
    (cd "$work/download" && apt-get -q download "$package") >"$work/download.log" 2>&1 ||
        skip "apt-get download $package: $(tail -n 1 "$work/download.log")"
    dpkg-deb -x "$work"/download/*.deb "$work/kernel"
    rm -rf "$work/download"
    kernel=$(newest_kernel)
fi
[ -r "$kernel" ] || skip "there is no kernel $kernel"

# What is in the guest: busybox, the commands with what they load, and the scripts.
cargo build --locked --quiet --package dimmer-cli --package dimmer-daemon --package dimmer-preload
root=$work/root
rm -rf "$root"
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

# shellcheck disable=SC2086 # several words on purpose
guest() {
    : >"$work/console"
    exec timeout "$limit" qemu-system-x86_64 $1 -smp 4,cores=2,threads=2 -m 1536 -M q35 -display none -nodefaults \
        -no-reboot -serial "file:$work/console" -kernel "$kernel" -initrd "$work/initramfs" \
        -append "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off" </dev/null >"$work/qemu.log" 2>&1
}

# Whether the guest that was started last has come to life.
lives() {
    for _ in $(seq "$((first_line * 10))"); do
        if grep -q '^guest: ' "$work/console"; then return 0; fi
        kill -0 "$running" 2>/dev/null || return 1
        sleep 0.1
    done
    return 1
}

running=
trap 'if [ -n "$running" ]; then kill "$running" 2>/dev/null || true; fi' EXIT
how=KVM
if [ -w /dev/kvm ] && [ -z "${DIMMER_GUEST_CPU:-}" ]; then
    guest "-accel kvm -cpu host,topoext=on" &
    running=$!
fi
if [ -z "$running" ] || ! lives; then
    if [ -n "$running" ]; then
        kill "$running" 2>/dev/null || true
        wait "$running" || true
    fi
    how=TCG
    # Without cmpxchg16b, after which QEMU 7.2 was seen to have spoilt the flags (Linux 6.12, kmalloc: double fault).
    guest "-accel tcg,thread=multi -cpu ${DIMMER_GUEST_CPU:-Haswell-noTSX},-cx16" &
    running=$!
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
