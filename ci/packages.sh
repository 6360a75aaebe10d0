#!/bin/sh
# Makes the packages of a release, .deb and .rpm, from what ci/dist.sh has built: `dimmer`
# (programs), `libdimmer` (for C and C++) and `dimmer-dkms` (the modules of kernel/).
#
# Usage: ci/packages.sh [DIRECTORY]     (default: out/packages)
#
# READY names a directory with the built programs and libraries (bin, lib); without it they are
# those of ci/dist.sh, which runs first. nfpm writes both formats from one list of files; Go builds
# it from its source, checked by Go's checksum database.
set -eu
cd "$(dirname "$0")/.."

NFPM=v2.43.0
build=${CARGO_TARGET_DIR:-target}/packages
mkdir -p "$build" "${1:-out/packages}"
out=$(cd "${1:-out/packages}" && pwd)
build=$(cd "$build" && pwd)
VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
STAGE=$build/stage
export VERSION STAGE SOURCE_DATE_EPOCH

say() { printf 'packages: %s\n' "$*"; }
fail() { printf 'packages: %s\n' "$*" >&2; exit 1; }

name=$(sed -n 's/^PACKAGE_NAME="\(.*\)"/\1/p' kernel/dkms.conf)
grep -q "^PACKAGE_VERSION=\"$VERSION\"" kernel/dkms.conf ||
	fail "kernel/dkms.conf has another version than Cargo.toml, $VERSION"

nfpm=$build/tools/$NFPM/nfpm
if [ ! -x "$nfpm" ]; then
	command -v go >/dev/null || fail "go is missing, which builds nfpm $NFPM: install golang (1.24 or later)"
	say "building nfpm $NFPM"
	GOBIN=$build/tools/$NFPM go install "github.com/goreleaser/nfpm/v2/cmd/nfpm@$NFPM"
fi

if [ -z "${READY:-}" ]; then
	./ci/dist.sh
	READY=${CARGO_TARGET_DIR:-target}/dist/ready
fi
READY=$(cd "$READY" && pwd)

say "staging"
rm -rf "$STAGE"
mkdir -p "$STAGE/scripts"
staged() {
	part=$1
	shift
	make --no-print-directory --silent "$@" DESTDIR="$STAGE/$part" PREFIX=/usr SYSCONFDIR=/etc \
		DIMMER="$READY/bin/dimmer" DAEMON="$READY/bin/dimmerd" LIBRARIES="$READY/lib" \
		PRELOAD="$READY/lib/dimmer/libdimmer_preload.so" BOOST="$READY/lib/dimmer/libdimmer_boost.so"
}
staged dimmer install-dimmer install-daemon
mv "$STAGE/dimmer/etc" "$STAGE/etc"
staged libdimmer install-library
sources=$STAGE/dimmer-dkms/usr/src/$name-$VERSION
install -d "$sources"
install --mode=644 kernel/Kbuild kernel/Makefile kernel/dkms.conf kernel/*.c kernel/*.h "$sources/"
for script in postinst prerm preun; do
	sed -e "s|@NAME@|$name|" -e "s|@VERSION@|$VERSION|" "ci/package/dkms/$script" >"$STAGE/scripts/dkms-$script"
	chmod 755 "$STAGE/scripts/dkms-$script"
done
for package in dimmer libdimmer dimmer-dkms; do
	doc=$STAGE/$package/usr/share/doc/$package
	install -d "$doc"
	install --mode=644 "ci/package/copyright" "$doc/copyright"
	gzip -9n <CHANGELOG.md >"$doc/CHANGELOG.md.gz"
	chmod 644 "$doc/CHANGELOG.md.gz"
done
install --mode=644 README.md docs/SAFETY.md "$STAGE/dimmer/usr/share/doc/dimmer/"
gzip -9n "$STAGE/dimmer/usr/share/man"/man*/*
find "$STAGE" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +

rm -f "$out"/*.deb "$out"/*.rpm "$out/SHA256SUMS"
for package in dimmer libdimmer dimmer-dkms; do
	# nfpm fills in variables in some places only.
	sed -e "s|\$VERSION|$VERSION|" -e "s|\$STAGE|$STAGE|" "ci/package/$package.yaml" >"$STAGE/$package.yaml"
	for format in rpm deb; do
		# Debian's packages have their license in the file copyright alone.
		[ "$format" = rpm ] || sed -i '/^license:/d' "$STAGE/$package.yaml"
		"$nfpm" package --config "$STAGE/$package.yaml" --packager "$format" --target "$out" >/dev/null
	done
done
(cd "$out" && sha256sum ./*.deb ./*.rpm >SHA256SUMS)
say "ready in $out:"
(cd "$out" && ls -l)
