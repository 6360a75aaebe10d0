#!/bin/sh
# Builds a release: programs and libraries that start where glibc is 2.17 or later, stripped, with
# the libraries to preload inside `dimmer`, so that this one file is enough; their debug symbols; a
# static `dimmer` for systems with another C library.
#
# Usage: ci/dist.sh [--tests] [DIRECTORY]     (default: out/dist)
#
# With --tests, from what was built for tests, of which only the last crate of each program and
# library is built and linked again: a minute or two in place of a quarter of an hour. The archive has
# the same files, but the libraries lie beside `dimmer` alone; there are no debug symbols and no
# static `dimmer`.
#
# The linker is Zig's, which has the symbols of all versions of glibc. It comes from PyPI, into the
# build's directory, as `ziglang` and `cargo-zigbuild`. The Rust target for static programs comes by
# rustup.
set -eu
cd "$(dirname "$0")/.."

GLIBC=2.17
ZIG=0.17.1
ZIGBUILD=0.24.1
TARGET=x86_64-unknown-linux-gnu
STATIC=x86_64-unknown-linux-musl
PROGRAMS="dimmer dimmerd"
PRELOADED="libdimmer_preload.so libdimmer_boost.so"
MARKS="libswp.so libswp_migrate.so libswp_dummy.so libultmigration.so libultmigration_dummy.so"

tests=''
if [ "${1:-}" = --tests ]; then
	tests=yes
	shift
fi
out=${1:-out/dist}
target=${CARGO_TARGET_DIR:-target}
build=$target/dist
mkdir -p "$out" "$build"
out=$(cd "$out" && pwd)
build=$(cd "$build" && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
name=dimmer-$version-x86_64-linux

say() { printf 'dist: %s\n' "$*"; }
fail() { printf 'dist: %s\n' "$*" >&2; exit 1; }

for tool in python3 objcopy strip objdump readelf cargo rustup git; do
	command -v "$tool" >/dev/null || fail "$tool is missing: install python3-venv, binutils, git and rustup"
done
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

tools=$build/tools
if [ "$(cat "$tools/versions" 2>/dev/null)" != "$ZIG $ZIGBUILD" ]; then
	say "fetching Zig $ZIG and cargo-zigbuild $ZIGBUILD from PyPI"
	rm -rf "$tools"
	python3 -m venv "$tools"
	"$tools/bin/pip" install --quiet "ziglang==$ZIG" "cargo-zigbuild==$ZIGBUILD"
	echo "$ZIG $ZIGBUILD" >"$tools/versions"
fi
export PATH="$tools/bin:$PATH" VIRTUAL_ENV="$tools"
export ZIG_GLOBAL_CACHE_DIR="$build/zig"
[ -n "$tests" ] || export CARGO_TARGET_DIR="$build/cargo"
# Lines and functions for backtraces and debuggers, in files apart.
export CARGO_PROFILE_RELEASE_DEBUG=line-tables-only CARGO_PROFILE_RELEASE_STRIP=none

# The unwinder that the library with hooks brings along: Zig's, built for this glibc. Its archive
# names its members by paths, which other tools do not take.
unwinder=$build/unwinder-$ZIG-$GLIBC
if [ ! -e "$unwinder/unwinder.a" ]; then
	rm -rf "$unwinder"
	mkdir -p "$unwinder"
	echo 'int none;' >"$unwinder/none.c"
	zig="python3 -m ziglang"
	archive=$($zig cc -target "x86_64-linux-gnu.$GLIBC" -O2 -fPIC -shared -lunwind --verbose \
		-o "$unwinder/none.so" "$unwinder/none.c" 2>&1 | tr ' ' '\n' | grep '/libunwind\.a$' | head -n 1)
	[ -n "$archive" ] || fail "Zig has built no libunwind.a"
	ar t "$archive" | while read -r member; do cp "$member" "$unwinder/"; done
	ar rcs "$unwinder/unwinder.a" "$unwinder"/*.o
fi

PACKAGES="dimmer-preload dimmer-boost dimmer-c dimmer-swp dimmer-swp-migrate dimmer-swp-dummy
	dimmer-ultmigration dimmer-ultmigration-dummy"
# Builds packages for this glibc.
if [ -z "$tests" ]; then
	built=$build/cargo/$TARGET/release
	zigbuild() {
		# shellcheck disable=SC2046 # each option is a word
		cargo zigbuild --quiet --release --locked --target "$TARGET.$GLIBC" $(printf ' -p %s' "$@")
	}
else
	built=$target/debug
	# In place of the system's linker. If cargo knew of another one, it would build all crates again;
	# so it sees new sources of these only, now and, for the system's linker, afterwards.
	mkdir -p "$build/linker"
	printf '#!/bin/sh\nexec cargo-zigbuild zig cc -- -target x86_64-linux-gnu.%s "$@"\n' "$GLIBC" >"$build/linker/cc"
	chmod 755 "$build/linker/cc"
	link_again() {
		touch crates/cli/src/main.rs crates/daemon/src/main.rs crates/preload/src/lib.rs crates/boost/src/lib.rs \
			crates/libdimmer/src/lib.rs crates/marks/libraries/*/src/lib.rs
	}
	link_again
	trap link_again EXIT
	zigbuild() {
		# Always all of them: what others of them ask of a crate is part of its build.
		# shellcheck disable=SC2046,SC2086 # each option is a word
		PATH="$build/linker:$PATH" cargo build --quiet --locked $(printf ' -p %s' $PACKAGES dimmer-cli dimmer-daemon)
	}
fi
say "building libraries for glibc $GLIBC"
export DIMMER_INITFIRST_LATER=1 DIMMER_UNWINDER="$unwinder/unwinder.a"
# shellcheck disable=SC2086 # each name is a word
zigbuild $PACKAGES

ready=$build/ready
rm -rf "$ready"
mkdir -p "$ready/lib" "$ready/debug"

# Sets a flag that Zig's linker does not know: the loader initialises such a library before others.
initfirst() {
	python3 - "$1" <<-'END'
		import struct, sys
		DT_NULL, DT_FLAGS_1, DF_1_INITFIRST, PT_DYNAMIC = 0, 0x6FFFFFFB, 0x20, 2
		path = sys.argv[1]
		file = bytearray(open(path, "rb").read())
		offset, = struct.unpack_from("<Q", file, 32)
		size, count = struct.unpack_from("<HH", file, 54)
		for place in range(offset, offset + size * count, size):
		    kind, = struct.unpack_from("<I", file, place)
		    if kind == PT_DYNAMIC:
		        entry, = struct.unpack_from("<Q", file, place + 8)
		while True:
		    tag, value = struct.unpack_from("<QQ", file, entry)
		    if tag == DT_NULL:
		        sys.exit(f"{path}: no DT_FLAGS_1")
		    if tag == DT_FLAGS_1:
		        struct.pack_into("<Q", file, entry + 8, value | DF_1_INITFIRST)
		        break
		    entry += 16
		open(path, "wb").write(file)
	END
	readelf --dynamic --wide "$1" | grep -q INITFIRST || fail "$1 has no INITFIRST"
}

# Puts a file into `ready` without its debug symbols, and those apart.
ready() {
	to=$ready/$2/$(basename "$1")
	mkdir -p "$ready/$2"
	cp "$1" "$to"
	objcopy --only-keep-debug "$1" "$ready/debug/$(basename "$1").debug"
	# A program's debug symbols lack its interpreter's name, of which readelf complains.
	readelf --section-headers --wide "$ready/debug/$(basename "$1").debug" 2>/dev/null |
		grep -q '\.debug_line' || [ -n "$tests" ] || fail "$1 was built without debug symbols"
	strip --strip-unneeded "$to"
	(cd "$ready/debug" && objcopy --add-gnu-debuglink="$(basename "$1").debug" "$to")
}

# Checks that a file needs no newer glibc.
check() {
	newest=$(objdump -T "$1" | grep -o 'GLIBC_[0-9.]*' | sort -V -u | tail -n 1)
	newest=${newest#GLIBC_}
	[ "$(printf '%s\n%s\n' "$newest" "$GLIBC" | sort -V | tail -n 1)" = "$GLIBC" ] ||
		fail "$1 needs glibc $newest, more than $GLIBC"
	# What that glibc lacks, Zig's linker leaves undefined, without a version.
	unknown=$(readelf --dyn-syms --wide "$1" |
		awk '$5 == "GLOBAL" && $7 == "UND" && $8 != "" && $8 !~ /@/ { print $8 }')
	# shellcheck disable=SC2086 # one line
	[ -z "$unknown" ] || fail "$1 needs what glibc $GLIBC does not have:" $unknown
}

for library in $PRELOADED; do
	ready "$built/$library" lib/dimmer
	initfirst "$ready/lib/dimmer/$library"
	check "$ready/lib/dimmer/$library"
done
for library in libdimmer.so $MARKS; do
	ready "$built/$library" lib
	check "$ready/lib/$library"
done

say "building programs for glibc $GLIBC"
[ -n "$tests" ] || export DIMMER_WITHIN="$ready/lib/dimmer"
zigbuild dimmer-cli dimmer-daemon
for program in $PROGRAMS; do
	ready "$built/$program" bin
	check "$ready/bin/$program"
done

static=dimmer-$version-x86_64-static
rm -f "$out/$static"
if [ -z "$tests" ]; then
	say "building a static dimmer"
	rustup --quiet target add "$STATIC"
	cargo zigbuild --quiet --release --locked --target "$STATIC" -p dimmer-cli
	cp "$build/cargo/$STATIC/release/dimmer" "$out/$static"
	strip "$out/$static"
fi

say "packing"
tree=$build/$name
rm -rf "$tree" "$tree-debug"
root=$build/root
rm -rf "$root"
cp "$built/libdimmer.a" "$ready/lib/"
strip --strip-debug "$ready/lib/libdimmer.a"
make --no-print-directory --silent install-dimmer install-library install-daemon DESTDIR="$root" \
	PREFIX=/usr/local SYSCONFDIR=/etc DIMMER="$ready/bin/dimmer" DAEMON="$ready/bin/dimmerd" \
	PRELOAD="$ready/lib/dimmer/libdimmer_preload.so" BOOST="$ready/lib/dimmer/libdimmer_boost.so" \
	LIBRARIES="$ready/lib"
mv "$root/usr/local" "$tree"
mv "$root/etc" "$tree/etc"
# README.md names these pages.
cp -R README.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md SECURITY.md LICENSE-* docs "$tree/"
mkdir -p "$tree-debug"
cp "$ready/debug"/* "$tree-debug/"
level=9
[ -z "$tests" ] || level=1
pack() {
	# The same content gives the same archive.
	tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -C "$build" -cf "$build/$1.tar" "$1"
	gzip "-$level" -n <"$build/$1.tar" >"$out/$1.tar.gz"
	rm "$build/$1.tar"
}
pack "$name"
parts=$name.tar.gz
if [ -z "$tests" ]; then
	pack "$name-debug"
	parts="$parts $name-debug.tar.gz $static"
fi
# shellcheck disable=SC2086 # each name is a word
(cd "$out" && sha256sum $parts >SHA256SUMS)
say "ready in $out:"
(cd "$out" && ls -l)
