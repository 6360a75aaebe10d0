#!/bin/sh
# Writes labels for node feature discovery from a result of `dimmer probe --json`.
#
# Usage: label.sh PROBE.json FEATURE-FILE
#
# dimmer.wide-code=yes|no|open|not-measured    `verdict.effect` of the result
# dimmer.wide-code-worst-pct=N                 `verdict.worst_pct`, rounded; without one, no label
set -eu

fail() { printf 'label: %s\n' "$*" >&2; exit 1; }
[ $# = 2 ] || fail "usage: label.sh PROBE.json FEATURE-FILE"
grep -q '"schema": "dimmer/probe/2"' "$1" || fail "$1 is no result of \`dimmer probe --json\` (dimmer/probe/2)"

# The first key of this name, at the start of a line: those of the verdict come first.
value() { sed -n "s/^ *\"$1\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$2" | head -n 1; }

effect=$(value effect "$1")
case $effect in
yes | no | open | not-measured) ;;
*) fail "$1: effect is \`$effect\`, expected yes, no, open or not-measured" ;;
esac
prefix=feature.node.kubernetes.io/dimmer.wide-code
# Files with a dot in front are ignored, so no half of a file is read.
new=$(dirname "$2")/.$(basename "$2")
{
	echo "$prefix=$effect"
	worst=$(value worst_pct "$1")
	case $worst in
	'' | null) ;;
	*) printf '%s-worst-pct=%.0f\n' "$prefix" "$worst" ;;
	esac
} >"$new"
mv "$new" "$2"
