#!/bin/sh
# `dimmer probe --mode pstate` and `dimmer pstate tune` in a Linux of its own, by the real files of cpufreq: Debian's
# kernel in QEMU, with a driver that has no clock behind it (ci/kernel/made_up_cpufreq.c). ci/guest/pstate.sh has the
# checks.
#
# usage: ci/pstate.sh     apt-get install qemu-system-x86 busybox-static linux-headers-cloud-amd64
#
# The kernel's image, of the version of the headers, is downloaded by apt below target/ and not installed. What is
# missing is printed after `SKIPPED:`, and fails where CI is set. DIMMER_BUILT as for ci/guest.sh.
set -eu
cd "$(dirname "$0")/.."

lacks() {
    [ -z "${CI:-}" ] || { echo "pstate: $1" >&2 && exit 1; }
    echo "SKIPPED: pstate: $1"
    exit 0
}

headers=$(find /usr/src -maxdepth 1 -name 'linux-headers-*-cloud-amd64' 2>/dev/null | sort -V | tail -n 1)
[ -n "$headers" ] || lacks "no headers of Debian's cloud kernel; apt-get install linux-headers-cloud-amd64"
command -v make >/dev/null && command -v gcc >/dev/null || lacks "no make or no gcc"
version=${headers##*/linux-headers-}
mkdir -p "${CARGO_TARGET_DIR:-target}/pstate"
work=$(cd "${CARGO_TARGET_DIR:-target}/pstate" && pwd)
image=$work/$version
if [ ! -e "$image/boot/vmlinuz-$version" ]; then
    rm -rf "$work/download" "$image" && mkdir "$work/download"
    (cd "$work/download" && apt-get -q download "linux-image-$version") >"$work/download.log" 2>&1 ||
        lacks "apt-get download linux-image-$version: $(tail -n 1 "$work/download.log")"
    dpkg-deb -x "$work"/download/*.deb "$image"
fi

rm -rf "$work/module" "$work/files" && mkdir -p "$work/module" "$work/files/root"
cp ci/kernel/made_up_cpufreq.c "$work/module"
echo 'obj-m := made_up_cpufreq.o' >"$work/module/Kbuild"
make -C "$headers" M="$work/module" modules >"$work/module.log" 2>&1 || {
    tail -n 5 "$work/module.log" >&2
    exit 1
}
cp "$work/module/made_up_cpufreq.ko" "$work/files/root"
find "$image/lib/modules" -name 'cpufreq_userspace.ko' -exec cp {} "$work/files/root" \;
DIMMER_GUEST_KERNEL=$image/boot/vmlinuz-$version DIMMER_GUEST_FILES=$work/files exec ci/guest.sh ci/guest/pstate.sh
