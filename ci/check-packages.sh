#!/bin/sh
# Installs what `ci/packages.sh` has made in a clean Debian, uses it there, and removes it: the .deb
# by dpkg, the .rpm by rpm. Nothing may be started or enabled, and no file may be left.
#
# Usage: ci/check-packages.sh [DIRECTORY]     (default: out/packages)
#
# Needs root and debootstrap (Debian's packages, over the network), and for the .rpm the program
# rpm; says "skipped" without. If CI is set, it fails if there is no Debian. The modules are built by DKMS if KERNEL_MODULES=1: that fetches a
# compiler and the headers of Debian's kernel.
set -eu
cd "$(dirname "$0")/.."

# Its kernel is one that the modules build for.
KERNEL_RELEASE=trixie
out=$(cd "${1:-out/packages}" && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

say() { printf 'check-packages: %s\n' "$*"; }
skip() { say "skipped: $*"; }
fail() { printf 'check-packages: %s\n' "$*" >&2; exit 1; }

(cd "$out" && sha256sum --check --quiet SHA256SUMS) || fail "the packages are not those of SHA256SUMS"
[ "$(id -u)" = 0 ] || { skip "making a root directory needs root"; exit 0; }

# Mounts, debootstrap's too, are this process's own: nothing is left mounted, however it ends.
if [ -z "${DIMMER_CHECK_PACKAGES:-}" ]; then
	DIMMER_CHECK_PACKAGES=own exec unshare --mount --propagation private "$PWD/ci/check-packages.sh" "$out"
fi

. ./ci/old-debian.sh
old_debian
if [ -z "$base" ]; then
	[ -z "${CI:-}" ] || fail "$why"
	skip "$why"
	exit 0
fi

root=$(mktemp -d)
lists=$(mktemp -d)
clear_root() {
	for mount in "$root/proc" "$root/dev" "$root/sys"; do
		# A program that just ends may hold it a moment longer: then it is only out of sight at once.
		if mountpoint -q "$mount" && ! umount --recursive "$mount" 2>/dev/null && ! umount --recursive --lazy "$mount"; then
			fail "$mount stays mounted, and $root where it is"
		fi
	done
	rm -rf --one-file-system "$root"
}
end() {
	clear_root
	rm -rf "$lists"
}
trap end EXIT
trap 'exit 1' INT TERM HUP

# Makes `root` a copy of a base.
fresh() {
	clear_root
	mkdir "$root"
	cp -a "$1/." "$root/"
	mount -t proc proc "$root/proc"
	mount --bind /dev "$root/dev"
	# systemd-analyze looks for its control group.
	mount --rbind /sys "$root/sys"
	mkdir "$root/packages"
	cp "$out"/*.deb "$out"/*.rpm "$root/packages/"
}
inside() { chroot "$root" env HOME=/root LC_ALL=C PAGER=cat DEBIAN_FRONTEND=noninteractive "$@"; }
expect() {
	expected=$1
	shift
	said=$("$@" 2>&1) || true
	printf '%s\n' "$said" | grep -q -- "$expected" || fail "$*: no \`$expected\` in: $said"
	say "passed: $*"
}
# All files, except those in which package managers and `man` keep their own state.
list() {
	(cd "$root" && find . -xdev \( -path ./proc -o -path ./dev -o -path ./packages -o -path ./var/lib/dpkg \
		-o -path ./var/lib/rpm -o -path ./var/log -o -path ./var/cache/man -o -path ./var/cache/ldconfig \
		-o -path ./var/cache/apt -o -path ./var/lib/apt -o -path ./root -o -path ./run/systemd \) -prune -o -printf '%p %y %m\n') |
		LC_ALL=C sort
}
unchanged() {
	list >"$lists/after"
	diff "$lists/before" "$lists/after" || fail "$1 left other files than it found"
	say "passed: $1 left no file"
}

# What an installed `dimmer` package has, whatever its format.
use() {
	expect "dimmer $version" inside dimmer --version
	expect "dimmerd $version" inside dimmerd --version
	expect "works" inside dimmer doctor
	expect "functions in" inside dimmer scan /usr/bin/dpkg
	expect "Observed for" inside dimmer observe --classes scalar -- /bin/ls /
	inside dimmerd --check --config /etc/dimmer/dimmerd.toml || fail "the configuration is refused"
	grep -q '^acting_pct = 0$' "$root/etc/dimmer/dimmerd.toml" || fail "dimmerd would act"
	for unit in dimmerd.service dimmerd.socket dimmer-probe.service; do
		expect "^disabled$" inside systemctl is-enabled "$unit"
	done
	inside systemd-analyze verify /usr/lib/systemd/system/dimmerd.service \
		/usr/lib/systemd/system/dimmer-probe.service || fail "systemd refuses a unit"
	# Man pages and completions as users have them.
	for page in dimmer dimmer-probe dimmerd; do
		expect "^NAME" inside man --no-hyphenation "$page"
	done
	expect "probe" inside bash -c '. /usr/share/bash-completion/bash_completion; _completion_loader dimmer
		COMP_WORDS=(dimmer pro); COMP_CWORD=1; _dimmer dimmer pro dimmer; echo "${COMPREPLY[@]}"'
	[ -e "$root/usr/share/doc/dimmer/copyright" ] || fail "there is no copyright"
}

say "$(sed -n 's/^PRETTY_NAME=//p' "$base/etc/os-release"), .deb"
fresh "$base"
list >"$lists/before"
inside dpkg --install "/packages/dimmer_${version}_amd64.deb" "/packages/libdimmer_${version}_amd64.deb"
use
expect "libdimmer.so.${version%.*}" inside ldconfig -p
# What the user enables goes with the package, and so does what the units have stored.
inside systemctl --quiet enable dimmerd.socket dimmer-probe.service
mkdir -p "$root/var/lib/dimmer"
touch "$root/var/lib/dimmer/model.toml"
inside dpkg --remove dimmer
[ -e "$root/etc/dimmer/dimmerd.toml" ] || fail "removing, not purging, has removed the configuration"
[ -e "$root/var/lib/dimmer/model.toml" ] || fail "removing, not purging, has removed a stored model"
inside dpkg --purge dimmer libdimmer
unchanged "dpkg --purge"

if command -v rpm >/dev/null; then
	say ".rpm"
	fresh "$base"
	list >"$lists/before"
	# The root has no packages of rpm's that could be asked for glibc.
	rpms() { rpm --root "$root" --dbpath /var/lib/rpm "$@"; }
	rpms --initdb
	rpms --install --nodeps "$root/packages/dimmer-$version-1.x86_64.rpm" "$root/packages/libdimmer-$version-1.x86_64.rpm"
	use
	expect "dimmer-$version" rpms --query dimmer
	inside systemctl --quiet enable dimmerd.socket
	rpms --erase --nodeps dimmer libdimmer
	unchanged "rpm --erase"
else
	skip "rpm is missing: apt-get install rpm"
fi

if [ "${KERNEL_MODULES:-0}" = 1 ]; then
	say "dimmer-dkms"
	modules=$roots/$KERNEL_RELEASE-modules
	[ -e "$modules.complete" ] || rm -rf --one-file-system "$modules"
	if [ -e "$modules.complete" ] || debootstrap --variant=minbase --include=dkms,linux-headers-amd64 \
		"$KERNEL_RELEASE" "$modules" http://deb.debian.org/debian >"$modules.log" 2>&1; then
		touch "$modules.complete"
		fresh "$modules"
		list >"$lists/before"
		inside dpkg --install "/packages/dimmer-dkms_${version}_all.deb"
		name=$(sed -n 's/^PACKAGE_NAME="\(.*\)"/\1/p' kernel/dkms.conf)
		kernel=$(inside ls /lib/modules | head -n 1)
		inside dkms install -m "$name" -v "$version" -k "$kernel" || fail "the modules do not build for $kernel"
		expect "$name/$version, $kernel, x86_64: installed" inside dkms status
		# As rpm upgrades: the former version is still registered, one of them without its sources.
		for former in 0.0.1 0.0.2; do
			cp -R "$root/usr/src/$name-$version" "$root/usr/src/$name-$former"
			sed -i "s/^PACKAGE_VERSION=.*/PACKAGE_VERSION=\"$former\"/" "$root/usr/src/$name-$former/dkms.conf"
			inside dkms add -m "$name" -v "$former"
		done
		rm -r "$root/usr/src/$name-0.0.2"
		inside sh /var/lib/dpkg/info/dimmer-dkms.postinst configure
		rm -r "$root/usr/src/$name-0.0.1"
		said=$(inside dkms status)
		[ "$said" = "$name/$version: added" ] || fail "after an upgrade, DKMS has: $said"
		inside dpkg --purge dimmer-dkms
		unchanged "dpkg --purge dimmer-dkms"
	else
		skip "debootstrap cannot make a Debian $KERNEL_RELEASE with DKMS: $(tail -n 1 "$modules.log")"
	fi
fi
say "all passed"
