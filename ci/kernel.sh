#!/bin/sh
# Builds what `make test-kernel` boots: a small Linux 6.12 with sched_ext (Debian's own 6.12 has
# none), and against it the modules of kernel/, the scheduler of bpf/ with its loader, and the
# programs of the tests.
#
# usage: ci/kernel.sh         all of it; prints the directory that has it
#        ci/kernel.sh linux   the kernel and its tools alone
#
# The kernel's source is Debian's package linux-source-6.12: downloaded by apt below target/, not
# installed. What is built from it stays below target/kernel, by its version and configuration;
# building takes 5 to 15 minutes once. The library for BPF and bpftool come from the same source, so
# that they know all that this kernel knows. DIMMER_KERNEL_SOURCE names a linux-source-6.12 package
# or a linux-source-6.12.tar.xz to be used instead. What is missing is printed after `SKIPPED:`, and
# fails where CI is set.
set -eu
cd "$(dirname "$0")/.."
top=$PWD

built=${CARGO_TARGET_DIR:-target}
mkdir -p "$built/kernel"
shared=$(cd "$built/kernel" && pwd)
config=kernel/config-6.12
package=linux-source-6.12
jobs=${DIMMER_KERNEL_JOBS:-$(nproc)}

say() { echo "kernel: $*" >&2; }

fails() {
    say "$*"
    exit 1
}

# Something that can be had is missing.
lacks() {
    [ -z "${CI:-}" ] || fails "$1"
    echo "SKIPPED: kernel: $1"
    exit 0
}

[ "$(uname -m)" = x86_64 ] || lacks "the kernel is built for x86-64, on x86-64"
for tool in gcc make flex bison bc pahole xz cpio; do
    command -v "$tool" >/dev/null || lacks "no $tool; ci/prerequisites.sh kernel installs it"
done
# Not every clang compiles for BPF what schedulers need; the kernel asks for 16.
clang=
for name in clang clang-19 clang-18 clang-17 clang-16; do
    version=$("$name" --version 2>/dev/null | sed -n 's/.*clang version \([0-9]*\).*/\1/p' | head -n 1)
    if [ "${version:-0}" -ge 16 ]; then
        clang=$name
        break
    fi
done
[ -n "$clang" ] || lacks "no clang of version 16 or later; ci/prerequisites.sh kernel installs it"
for header in gelf.h zlib.h; do
    echo "#include <$header>" | gcc -E - >/dev/null 2>&1 || lacks "no <$header>; ci/prerequisites.sh kernel installs it"
done

# The apt that knows Debian's own servers, whatever the machine's knows.
private_apt() {
    mkdir -p "$shared/apt/lists/partial" "$shared/apt/cache/archives/partial"
    : >"$shared/apt/status"
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    {
        echo "deb [signed-by=$keys] http://deb.debian.org/debian trixie main"
        echo "deb [signed-by=$keys] http://deb.debian.org/debian-security bookworm-security main"
    } >"$shared/apt/sources.list"
    apt-get -q -o Dir::Etc::sourcelist="$shared/apt/sources.list" -o Dir::Etc::sourceparts=- \
        -o Dir::State::Lists="$shared/apt/lists" -o Dir::State::status="$shared/apt/status" \
        -o Dir::Cache="$shared/apt/cache" "$@"
}

# Prints where the source is. What was downloaded once is used again.
source_archive() {
    if [ -n "${DIMMER_KERNEL_SOURCE:-}" ]; then
        echo "$DIMMER_KERNEL_SOURCE"
        return
    fi
    if [ -z "$(find "$shared" -maxdepth 1 -name "${package}_*.deb")" ]; then
        say "downloads $package"
        (cd "$shared" && apt-get -q download "$package" || {
            private_apt update && private_apt download "$package"
        }) >"$shared/download.log" 2>&1 || return 1
    fi
    find "$shared" -maxdepth 1 -name "${package}_*.deb" | sort -V | tail -n 1
}

# For scripts that run together.
exec 9>"$shared/lock"
flock 9

[ -n "${DIMMER_KERNEL_SOURCE:-}" ] || command -v apt-get >/dev/null ||
    lacks "no apt-get; DIMMER_KERNEL_SOURCE names the source"
archive=$(source_archive) || lacks "apt-get download $package: $(tail -n 1 "$shared/download.log")"
version=$(basename "$archive" | sed 's/^[^_]*_//; s/_all\.deb$//; s/\.tar\.xz$//')
key=$version-$({ cat "$config"; gcc --version; pahole --version; } | sha256sum | cut -c1-12)
linux=$shared/$key
tree=$linux/tree
build=$linux/build

# All but sources that this configuration does not compile, which are most files: disks may be slow.
unpack() {
    rm -rf "$linux"
    mkdir -p "$tree" "$build"
    say "unpacks $archive"
    case $archive in
    *.deb) dpkg-deb --fsys-tarfile "$archive" | tar -x -O --wildcards '*/linux-source-6.12.tar.xz' ;;
    *) cat "$archive" ;;
    esac | xz -dc -T0 | tar -x -C "$tree" --strip-components=1 --wildcards --exclude='*/tools/testing/*' \
        --exclude='*/Documentation/*.rst' --exclude='*/Documentation/*.yaml' --exclude='*/arch/[!xKu]*/*.[chSd]*' \
        --exclude='*/drivers/gpu/*/*.[ch]' --exclude='*/drivers/net/*/*.[ch]' --exclude='*/drivers/media/*.[ch]' \
        --exclude='*/drivers/infiniband/*.[ch]' --exclude='*/drivers/staging/*.[ch]' --exclude='*/drivers/scsi/*/*.[ch]' \
        --exclude='*/drivers/iio/*/*.[ch]' --exclude='*/sound/*/*.[ch]'
}

build_linux() {
    unpack
    say "builds Linux $version; see $linux/build.log"
    make_linux() { make -C "$tree" O="$build" ARCH=x86_64 "$@"; }
    mkdir "$linux/libbpf" "$linux/bpftool"
    # One chain: where a command's failure is asked for, `set -e` does not hold within it.
    {
        make_linux tinyconfig &&
            "$tree/scripts/kconfig/merge_config.sh" -m -O "$build" "$build/.config" "$config" &&
            make_linux olddefconfig &&
            make_linux -j "$jobs" bzImage modules &&
            make -C "$tree/tools/lib/bpf" O= OUTPUT="$linux/libbpf/" DESTDIR="$linux/root" prefix=/usr \
                -j "$jobs" install_headers "$linux/libbpf/libbpf.a" &&
            make -C "$tree/tools/bpf/bpftool" O= OUTPUT="$linux/bpftool/" -j "$jobs" bootstrap &&
            "$linux/bpftool/bootstrap/bpftool" btf dump file "$build/vmlinux" format c >"$linux/vmlinux.h"
    } >"$linux/build.log" 2>&1 </dev/null || fails "$(tail -n 3 "$linux/build.log")"
    for option in $(sed -n 's/^\(CONFIG_[A-Z0-9_]*\)=y$/\1/p' "$config"); do
        grep -q "^$option=y" "$build/.config" || fails "the configuration lost $option"
    done
    cp "$build/arch/x86/boot/bzImage" "$linux/bzImage"
    # What modules need stays, with the image that has the types.
    find "$build" -name '*.o' ! -path '*/scripts/*' ! -path '*/tools/*' -delete
    find "$build" -name '*.a' -delete
    touch "$linux/is-complete"
    say "Linux $version is in $linux: $(du -sh "$linux" | cut -f1)"
}

[ -e "$linux/is-complete" ] || build_linux
[ "${1:-}" != linux ] || { echo "$linux"; exit; }

# What changes more often than the kernel; a second or two.
products=$linux/products
rm -rf "$linux/module" && mkdir -p "$products" "$linux/module/kvm"
cp kernel/*.c kernel/*.h kernel/Kbuild "$linux/module"
cp ci/kernel/kvm.c "$linux/module/kvm"
echo 'obj-m := kvm.o' >"$linux/module/kvm/Kbuild"
includes="-I$linux -I$linux/root/usr/include"
{
    make -C "$build" M="$linux/module" modules &&
        make -C "$build" M="$linux/module/kvm" modules &&
        cp "$linux/module/dimmer_xcr0.ko" "$linux/module/dimmer_pstate.ko" "$linux/module/kvm/kvm.ko" "$products" &&
        cd bpf &&
        # shellcheck disable=SC2086 # several words on purpose
        "$clang" -g -O2 -target bpf -mcpu=v3 -D__TARGET_ARCH_x86 -Wall -Wno-missing-declarations -Werror $includes \
            -c specialise.bpf.c -o "$products/specialise.bpf.o" &&
        "$linux/bpftool/bootstrap/bpftool" gen skeleton "$products/specialise.bpf.o" name specialise_bpf \
            >"$products/specialise.skel.h" &&
        # shellcheck disable=SC2086
        gcc -O2 -static -Wall -Werror $includes "-I$products" -o "$products/dimmer-specialise" specialise.c \
            "$linux/libbpf/libbpf.a" -lelf -lz &&
        cd "$top" &&
        gcc -O1 -static -pthread -Wall -Werror -o "$products/wide" ci/kernel/wide.c &&
        gcc -O1 -static -pthread -Wall -Werror -o "$products/switches" ci/kernel/switches.c &&
        gcc -O1 -static -Wall -Werror -Ikernel -o "$products/pstates" ci/kernel/pstates.c
} >"$linux/products.log" 2>&1 </dev/null || fails "$(grep -E 'error|warning|\*\*\*' "$linux/products.log" | head -n 20)"
cp "$linux/bzImage" "$products/bzImage"
echo "$products"
