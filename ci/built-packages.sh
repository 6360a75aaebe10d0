#!/bin/sh
# A release of what was built for tests: linked for old versions of glibc, whose symbols are checked,
# and packed by ci/dist.sh; started in an old Debian by ci/check-dist.sh; made into packages by
# ci/packages.sh, which ci/check-packages.sh installs, uses and removes there. Everything of a
# release but the optimised build (make dist), which takes a quarter of an hour.
#
# Usage: ci/built-packages.sh
#
# The first time, pip fetches Zig, Go fetches and builds nfpm, and debootstrap makes a Debian: a
# network, root, and some minutes. All stay in target/.
set -eu
cd "$(dirname "$0")/.."

skip() { echo "SKIPPED: a release of what was built: $*"; exit 0; }
[ "$(id -u)" = 0 ] || skip "making a root directory needs root"
for tool in go debootstrap strip make; do
	command -v $tool >/dev/null || skip "no $tool: apt-get install golang debootstrap binutils make"
done

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
trap 'exit 1' INT TERM HUP
# Without a network, tools are missing.
made() {
	"$@" && return
	[ -n "${CI:-}" ] || skip "it cannot be made here (see above)"
	exit 1
}
made ./ci/dist.sh --tests "$place/dist"
./ci/check-dist.sh "$place/dist"
made env READY="${CARGO_TARGET_DIR:-target}/dist/ready" ./ci/packages.sh "$place/packages"
./ci/check-packages.sh "$place/packages"
