# Sourced by scripts that try what was built in an old Debian: makes the oldest one that Debian's
# servers still have, once, and sets `base` to its directory, in `roots`, where such may lie. Without
# one, `why` has the reason. If CI is set, only the oldest of OLD_DEBIANS will do.
#
# Needs root, debootstrap and a network. Call it in a mount namespace of its own: debootstrap mounts.

# Releases, the oldest first. Debian moves them to other servers once their support has ended.
OLD_DEBIANS="bullseye bookworm trixie"

old_debian() {
	roots=${CARGO_TARGET_DIR:-target}/roots
	mkdir -p "$roots"
	roots=$(cd "$roots" && pwd)
	base='' why=''
	command -v debootstrap >/dev/null || { why="debootstrap is missing: apt-get install debootstrap"; return; }
	for release in $OLD_DEBIANS; do
		made=$roots/$release
		if [ ! -e "$made.complete" ]; then
			rm -rf --one-file-system "$made"
			debootstrap --variant=minbase --include=man-db,bash-completion,systemd "$release" "$made" \
				http://deb.debian.org/debian >"$made.log" 2>&1 || {
				why="debootstrap cannot make a Debian $release: $(tail -n 1 "$made.log")"
				printf 'old-debian: %s\n' "$why" >&2
				# A newer Debian would pass where this one may not.
				[ -z "${CI:-}" ] || return 0
				continue
			}
			touch "$made.complete"
		fi
		base=$made
		return
	done
}
