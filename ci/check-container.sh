#!/bin/sh
# Builds contrib/Containerfile from what ci/dist.sh has built, by buildah, without a registry, and
# runs the image's program in the image's root.
#
# Usage: ci/check-container.sh [DIRECTORY]     (default: out/dist)
#
# Needs root and buildah; says "skipped" without.
set -eu
cd "$(dirname "$0")/.."

out=$(cd "${1:-out/dist}" && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
skip() { printf 'check-container: skipped: %s\n' "$*"; exit 0; }
fail() { printf 'check-container: %s\n' "$*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || skip "mounting an image needs root"
command -v buildah >/dev/null || skip "buildah is missing: apt-get install buildah"

# Images and their layers stay here.
store=$(mktemp -d)
container=
build() { buildah --root "$store/root" --runroot "$store/run" --storage-driver vfs "$@"; }
end() {
	[ -z "$container" ] || { build umount "$container" && build rm "$container"; } >/dev/null
	rm -rf --one-file-system "$store"
}
trap end EXIT
trap 'exit 1' INT TERM HUP
build build --isolation chroot --build-arg "VERSION=$version" --file contrib/Containerfile --tag "dimmer:$version" "$out"
container=$(build from --pull-never "dimmer:$version")
image=$(build mount "$container")
[ "$(find "$image" -type f | wc -l)" = 1 ] || fail "the image has more than one file"
for arguments in --version doctor "scan /dimmer" "probe --list"; do
	# shellcheck disable=SC2086 # Words.
	chroot "$image" /dimmer $arguments >"$store/said" || fail "dimmer $arguments: $(cat "$store/said")"
	printf 'check-container: passed: dimmer %s: %s\n' "$arguments" "$(head -n 1 "$store/said")"
done
