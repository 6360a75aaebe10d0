#!/bin/sh
# The modules and the scheduler of core specialisation, tried in QEMU in the kernel that ci/kernel.sh
# builds, with two processors and with four, which QEMU emulates. ci/guest/kernel.sh and
# dimmer_pstate.sh have the checks.
#
# usage: ci/test-kernel.sh           (make test-kernel)
#
# DIMMER_KERNEL_SECONDS is how long registers are compared under stress, in each of the guests (60);
# DIMMER_KERNEL_CPUS names other numbers of processors. Each check is a line; what cannot run is
# printed after `SKIPPED:`. The last line of each guest has the counts: faults, moves, returns,
# wrong registers, which must be none, and the wrong registers of a control without hooks, which
# must be some.
set -eu
cd "$(dirname "$0")/.."

seconds=${DIMMER_KERNEL_SECONDS:-60}
# What hangs is given up (s): the checks take about five minutes on a busy machine.
limit=$((seconds * 4 + 1500))
# How long a guest may take until its first line (s), as in ci/guest.sh.
first_line=90
attempts=3

lacks() {
    if [ -n "${CI:-}" ]; then
        echo "test-kernel: $1" >&2
        exit 1
    fi
    echo "SKIPPED: test-kernel: $1"
    exit 0
}

command -v qemu-system-x86_64 >/dev/null || lacks "no QEMU; ci/prerequisites.sh guest installs it"
busybox=$(command -v busybox) || lacks "no busybox; ci/prerequisites.sh guest installs it"
if ldd "$busybox" >/dev/null 2>&1; then lacks "busybox is not linked statically; apt-get install busybox-static"; fi

products=$(ci/kernel.sh)
case $products in
SKIPPED:*)
    echo "$products"
    exit 0
    ;;
esac

work=$products/guest
rm -rf "$work"
root=$work/root
mkdir -p "$root/bin" "$root/proc" "$root/sys" "$root/dev" "$root/run" "$root/tmp" "$root/root"
cp "$busybox" "$root/bin/busybox"
cp "$products/dimmer-specialise" "$products/wide" "$products/switches" "$products/pstates" "$root/bin"
cp "$products/dimmer_xcr0.ko" "$products/dimmer_pstate.ko" "$products/kvm.ko" "$root/root"
# The example of dimmer-pace, with what it loads.
cargo build --locked --quiet --package dimmer-pace --example ask
ask=${CARGO_TARGET_DIR:-target}/debug/examples/ask
strip -o "$root/bin/ask" "$ask"
ldd "$ask" | sed -n 's|^[^/]*\(/[^ ]*\) (0x.*|\1|p' | while read -r library; do
    cp -L --parents "$library" "$root"
done
cp ci/guest/init "$root/init"
{
    echo "seconds=$seconds"
    cat ci/guest/dimmer_pstate.sh ci/guest/kernel.sh
} >"$root/script"
(cd "$root" && find . | "$busybox" cpio --quiet -o -H newc) >"$work/initramfs"
rm -rf "$root"

running=
stop() {
    [ -n "$running" ] || return 0
    kill "$running" 2>/dev/null || true
    wait "$running" || true
    running=
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# boots CPUS: starts a guest; whether it prints its first line in time.
boots() {
    : >"$work/console"
    # glibc's own wide code is left out of the programs, so that what faults is theirs.
    timeout "$limit" qemu-system-x86_64 -accel tcg,thread="${DIMMER_KERNEL_THREADS:-multi}" -cpu Haswell-noTSX -smp "$1" \
        -m 1024 -M q35 -display none -nodefaults -no-reboot -serial "file:$work/console" \
        -kernel "$products/bzImage" -initrd "$work/initramfs" \
        -append "console=ttyS0 quiet loglevel=1 panic=-1 mitigations=off ${DIMMER_KERNEL_OPTIONS:-} \
GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2,-AVX_Fast_Unaligned_Load" \
        </dev/null >"$work/qemu.log" 2>&1 &
    running=$!
    for _ in $(seq "$((first_line * 10))"); do
        if grep -q '^guest: ' "$work/console"; then return 0; fi
        kill -0 "$running" 2>/dev/null || break
        sleep 0.1
    done
    if grep -q '^guest: ' "$work/console"; then return 0; fi
    stop
    return 1
}

status=0
for cpus in ${DIMMER_KERNEL_CPUS:-2 4}; do
    attempt=1
    until boots "$cpus"; do
        echo "test-kernel: attempt $attempt of $attempts ended or printed nothing for $first_line s; see $work/qemu.log"
        if [ "$attempt" -eq "$attempts" ]; then exit 1; fi
        attempt=$((attempt + 1))
    done
    wait "$running" || true
    running=
    cp "$work/console" "$products/console-$cpus"
    tr -d '\r' <"$work/console" | sed '/^guest: ends/q; /^decision: /d'
    tr -d '\r' <"$work/console" | sed -n 's/^decision: //p' >"$products/decisions-$cpus"
    # The policy decides it all again.
    DIMMER_KERNEL_DECISIONS=$products/decisions-$cpus \
        cargo test --locked --quiet --package dimmer-policy --test it kernel || status=1
    ended=$(tr -d '\r' <"$work/console" | sed -n 's/^guest: ends with //p')
    if [ -z "$ended" ]; then
        echo "test-kernel: no end within $limit s; see $products/console-$cpus" >&2
        status=1
    elif [ "$ended" -ne 0 ]; then
        status=1
    fi
done
exit "$status"
