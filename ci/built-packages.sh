#!/bin/sh
# Packages of what was built for tests: made by ci/packages.sh, installed, used and removed by
# ci/check-packages.sh. Everything of packages but the build for old versions of glibc (make dist),
# which takes a quarter of an hour.
#
# Usage: ci/built-packages.sh
#
# The first time, Go fetches and builds nfpm, and debootstrap a Debian 12: a network, root, and some
# minutes. Both stay in target/packages.
set -eu
cd "$(dirname "$0")/.."

skip() { echo "SKIPPED: packages of what was built: $*"; exit 0; }
[ "$(id -u)" = 0 ] || skip "making a root directory needs root"
for tool in go debootstrap strip make; do
	command -v $tool >/dev/null || skip "no $tool: apt-get install golang debootstrap binutils make"
done
# Debian 12, in which they are tried, has glibc 2.36.
glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/.* //')
[ "$(printf '%s\n' "$glibc" 2.36 | sort -V | tail -n 1)" = 2.36 ] ||
	skip "what is built with glibc ${glibc:-of another kind} does not start in Debian 12"

MARKS="swp swp_migrate swp_dummy ultmigration ultmigration_dummy"
packages="--package dimmer-cli --package dimmer-daemon --package dimmer-preload --package dimmer-boost --package dimmer-c"
for mark in $MARKS; do
	packages="$packages --package dimmer-$(echo "$mark" | tr _ -)"
done
# shellcheck disable=SC2086 # each option is a word
cargo build --quiet --locked $packages
built=${CARGO_TARGET_DIR:-target}/debug

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
trap 'exit 1' INT TERM HUP
mkdir -p "$place/ready/bin" "$place/ready/lib/dimmer"
cp "$built/dimmer" "$built/dimmerd" "$place/ready/bin/"
cp "$built/libdimmer.so" "$built/libdimmer.a" "$place/ready/lib/"
for mark in $MARKS; do cp "$built/lib$mark.so" "$place/ready/lib/"; done
cp "$built/libdimmer_preload.so" "$built/libdimmer_boost.so" "$place/ready/lib/dimmer/"
strip --strip-unneeded "$place"/ready/bin/* "$place"/ready/lib/*.so "$place"/ready/lib/dimmer/*.so
strip --strip-debug "$place/ready/lib/libdimmer.a"
READY=$place/ready ./ci/packages.sh "$place/out" || {
	[ -n "${CI:-}" ] || skip "they cannot be made here (see above); without a network, nfpm is missing"
	exit 1
}
./ci/check-packages.sh "$place/out"
