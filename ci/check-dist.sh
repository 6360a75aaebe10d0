#!/bin/sh
# Starts what `ci/dist.sh` has built in an old Debian, whose glibc is older than that of the machine
# that built it, and the static program, if there is one, in a root with nothing else.
#
# Usage: ci/check-dist.sh [DIRECTORY]     (default: out/dist)
#
# Needs root and debootstrap (Debian's packages, over the network); says "skipped" without, and fails
# if CI is set.
set -eu
cd "$(dirname "$0")/.."

out=$(cd "${1:-out/dist}" && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
name=dimmer-$version-x86_64-linux

fail() { printf 'check-dist: %s\n' "$*" >&2; exit 1; }
skip() {
	[ -z "${CI:-}" ] || fail "$*"
	printf 'check-dist: skipped: %s\n' "$*"
	exit 0
}

(cd "$out" && sha256sum --check --quiet SHA256SUMS) || fail "the archives are not those of SHA256SUMS"
[ "$(id -u)" = 0 ] || skip "making a root directory needs root"
# Mounts, debootstrap's too, are this process's own: nothing is left mounted, however it ends.
if [ -z "${DIMMER_CHECK_DIST:-}" ]; then
	DIMMER_CHECK_DIST=own exec unshare --mount --propagation private "$PWD/ci/check-dist.sh" "$out"
fi
. ./ci/old-debian.sh
old_debian
[ -n "$base" ] || skip "$why"
printf 'check-dist: %s\n' "$(chroot "$base" ldd --version | head -n 1)"

root=$(mktemp -d)
end() {
	for mount in "$root/bare/proc" "$root/proc" "$root/dev"; do
		if mountpoint -q "$mount" && ! umount "$mount"; then
			fail "$mount stays mounted, and $root where it is"
		fi
	done
	rm -rf --one-file-system "$root"
}
trap end EXIT
trap 'exit 1' INT TERM HUP
cp -a "$base/." "$root/"
tar -C "$root/opt" -xzf "$out/$name.tar.gz"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"

static=$out/dimmer-$version-x86_64-static
if [ -e "$static" ]; then
	# One file is enough: it has the libraries inside.
	program=/one/dimmer
	mkdir "$root/one"
	cp "$root/opt/$name/bin/dimmer" "$root/one/"
else
	# Of `ci/dist.sh --tests`: they lie beside it.
	program=/opt/$name/bin/dimmer
fi
one() { chroot "$root" env HOME=/root "$program" "$@"; }
expect() {
	expected=$1
	shift
	said=$("$@" 2>&1) || fail "$*: $said"
	printf '%s\n' "$said" | grep -q -- "$expected" || fail "$*: no \`$expected\` in: $said"
	printf 'check-dist: passed: %s\n' "$*"
}
expect "dimmer $version" one --version
expect "works" one doctor
expect "functions in" one scan /usr/bin/dpkg
expect "processes, for" one ps
expect "Observed for" one observe --classes scalar -- /bin/ls /
expect "usr" one run --narrow -- /bin/ls /
expect "acquisitions" one run --boost -- /bin/ls /
expect "dimmerd $version" chroot "$root" "/opt/$name/bin/dimmerd" --version
one observe --classes scalar -- /bin/sh -c 'exit 7' >/dev/null 2>&1 && fail "observe lost a status"
if [ ! -e "$static" ]; then
	echo "check-dist: all passed"
	exit
fi
[ "$(find "$root/var/cache/dimmer" -name 'libdimmer_*.so' | wc -l)" = 2 ] || fail "the libraries were not unpacked"

# Nothing but the program.
bare=$root/bare
mkdir -p "$bare/proc" "$bare/tmp"
mount --bind "$root/proc" "$bare/proc"
cp "$static" "$bare/dimmer"
static() { chroot "$bare" /dimmer "$@"; }
expect "dimmer $version" static --version
expect "works" static doctor
expect "functions in" static scan /dimmer
expect "processes, for" static ps
echo "check-dist: all passed"
