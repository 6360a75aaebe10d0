#!/bin/sh
# Makes sure that this machine has what builds Dimmer: a C linker, and a Rust as new as Cargo.toml
# asks for. As root, what is missing is installed with the system's package manager; anybody else
# is told the one command to run.
#
# usage: ci/prerequisites.sh          what a build needs
#        ci/prerequisites.sh checks   clippy, rustfmt and Python as well
#        ci/prerequisites.sh python   Python, for ci/python.sh
#        ci/prerequisites.sh evidence  what `dimmer bench nginx` runs, for `make evidence`
#        ci/prerequisites.sh guest    a build's, and what ci/guest.sh boots a Linux of its own with
#        ci/prerequisites.sh kernel   the guest's, and what ci/kernel.sh builds a kernel with
set -eu
cd "$(dirname "$0")/.."

needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
rustup_script="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y"

has() { command -v "$1" >/dev/null 2>&1; }

# 1.88.0 -> 1088
version_number() {
    rest=${1#*.}
    echo $((${1%%.*} * 1000 + ${rest%%.*}))
}

is_new_enough() {
    case $1 in [0-9]*.[0-9]*) [ "$(version_number "$1")" -ge "$(version_number "$needed")" ] ;;
    *) false ;;
    esac
}

has_rust() {
    has cargo && is_new_enough "$(rustc --version 2>/dev/null | cut -d' ' -f2)"
}

has_checks() { cargo clippy --version >/dev/null 2>&1 && cargo fmt --version >/dev/null 2>&1; }

manager=none
for name in apt-get dnf pacman zypper apk; do
    if has "$name"; then
        manager=$name
        break
    fi
done

# The command that installs packages, for the package manager of this system.
install_command() {
    case $manager in
    apt-get) echo "apt-get install -y --no-install-recommends $*" ;;
    dnf) echo "dnf install -y $*" ;;
    pacman) echo "pacman -S --noconfirm --needed $*" ;;
    zypper) echo "zypper --non-interactive install $*" ;;
    apk) echo "apk add $*" ;;
    *) echo "YOUR-PACKAGE-MANAGER install $*" ;;
    esac
}

may_install() { [ "$manager" != none ] && [ "$(id -u)" -eq 0 ]; }

# Installs packages, or fails.
install_packages() {
    echo "prerequisites: $(install_command "$@")" >&2
    if [ "$manager" = apt-get ]; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -q >/dev/null || true
    fi
    # Package names have no blanks.
    # shellcheck disable=SC2046,SC2091
    $(install_command "$@") </dev/null >&2
}

# Notes what is missing and the command that mends it; `finish` says so in the end.
missing=
remedy=
give_up() {
    missing="${missing:+$missing; }$1"
    remedy="${remedy:+$remedy && }$2"
}

finish() {
    [ -z "$missing" ] && return
    echo "prerequisites: $missing. Run this, then try again:" >&2
    echo "    $remedy" >&2
    exit 1
}

need_linker() {
    has cc && return
    case $manager in
    apt-get) packages="gcc libc6-dev" ;;
    apk) packages="gcc musl-dev" ;;
    *) packages="gcc" ;;
    esac
    # Several words on purpose.
    # shellcheck disable=SC2086
    if may_install && install_packages $packages && has cc; then return; fi
    give_up "a C linker (cc) is missing" "sudo $(install_command "$packages")"
}

# The distribution's own Rust; of apt, which knows versions beforehand, only if it is new enough.
install_rust_packages() {
    case $manager in
    apt-get)
        apt-get update -q >/dev/null || true
        candidate=$(apt-cache policy rustc | sed -n 's/^ *Candidate: //p')
        is_new_enough "$candidate" && install_packages cargo rustc rust-clippy rustfmt
        ;;
    dnf) install_packages cargo rust clippy rustfmt ;;
    pacman) install_packages rust ;;
    zypper) install_packages cargo rust ;;
    apk) install_packages cargo rust rust-clippy rustfmt ;;
    esac
}

# rustup from the distribution, which then fetches a toolchain from rust-lang.org.
install_rustup() {
    install_packages rustup ca-certificates || return 1
    if has rustup; then
        rustup toolchain install stable --profile minimal --component clippy,rustfmt >&2 &&
            rustup default stable >&2
    else
        rustup-init -y --profile minimal --component clippy,rustfmt >&2
    fi
}

need_rust() {
    has_rust && return
    if has rustup; then
        give_up "Rust $needed or newer is missing" "rustup default stable && rustup update stable"
        return
    fi
    if may_install; then
        install_rust_packages && has_rust && return
        install_rustup && has_rust && return
    fi
    give_up "Rust $needed or newer is missing" "$rustup_script"
}

# Not having them is no reason to stop: `cargo xtask ci` says what it left out.
want_checks() {
    has_checks && return
    if has rustup && rustup component add clippy rustfmt >&2; then return; fi
    if may_install && ! has rustup; then install_rust_packages || true; fi
    has_checks || echo "prerequisites: clippy or rustfmt is missing; their checks are left out" >&2
}

# Not having it is no reason to stop: ci/python.sh says what it lacks.
want_python() {
    python3 -c 'import ensurepip, venv' 2>/dev/null && return
    if may_install && [ "$manager" = apt-get ]; then install_packages python3 python3-venv || true; fi
}

# Not having them is no reason to stop: the record has the reason why it lacks nginx.
want_evidence() {
    packages=
    # Only root has the directories of servers in PATH.
    for pair in nginx:nginx wrk:wrk openssl:openssl setpriv:util-linux; do
        (PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" && has "${pair%:*}") ||
            packages="$packages ${pair#*:}"
    done
    [ -z "$packages" ] && return
    # Several words on purpose.
    # shellcheck disable=SC2086
    if may_install && [ "$manager" = apt-get ] && install_packages $packages; then
        case $packages in *nginx*)
            echo "prerequisites: it may have started a server: systemctl disable --now nginx" >&2
            ;;
        esac
        return
    fi
    # shellcheck disable=SC2086
    command=$(install_command $packages)
    echo "prerequisites: the record will lack nginx; what installs it: sudo $command" >&2
}

# Not having them is no reason to stop: ci/guest.sh says what it lacks.
want_guest() {
    has qemu-system-x86_64 && has busybox && ! ldd "$(command -v busybox)" >/dev/null 2>&1 && return
    if may_install && [ "$manager" = apt-get ]; then install_packages qemu-system-x86 busybox-static || true; fi
}

# Not having them is no reason to stop: ci/kernel.sh says what it lacks.
want_kernel() {
    for tool in gcc make flex bison bc pahole xz cpio clang-16; do
        if ! has "$tool"; then
            lacks_for_kernel=1
            break
        fi
    done
    [ -e /usr/include/gelf.h ] && [ -e /usr/include/zlib.h ] && [ -z "${lacks_for_kernel:-}" ] && return
    clang=clang
    apt-cache show clang-16 >/dev/null 2>&1 && clang=clang-16
    if may_install && [ "$manager" = apt-get ]; then
        install_packages gcc libc6-dev make flex bison bc dwarves xz-utils cpio libelf-dev zlib1g-dev "$clang" || true
    fi
}

PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
need_linker
need_rust
finish
case ${1:-} in
checks)
    want_checks
    want_python
    ;;
python) want_python ;;
evidence) want_evidence ;;
guest) want_guest ;;
kernel)
    want_guest
    want_kernel
    ;;
esac
