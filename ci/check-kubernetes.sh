#!/bin/sh
# Checks contrib/kubernetes: the files give one DaemonSet and its script (by kustomize, which Go
# builds), and the script gives the labels of recorded results.
set -eu
cd "$(dirname "$0")/.."

KUSTOMIZE=v5.7.1
tools=${CARGO_TARGET_DIR:-target}/kubernetes/$KUSTOMIZE
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { printf 'check-kubernetes: %s\n' "$*" >&2; exit 1; }
passed() { printf 'check-kubernetes: passed: %s\n' "$*"; }

label() { sh contrib/kubernetes/label.sh "$1" "$work/dimmer" && cat "$work/dimmer"; }
expect() {
	said=$(label "$1" 2>&1) || true
	[ "$said" = "$2" ] || fail "label.sh $1 says \`$said\`, expected \`$2\`"
	passed "label.sh $1"
}
prefix=feature.node.kubernetes.io/dimmer.wide-code
expect machines/epyc-zen5-vm-linux-6.18-2026-11-27/probe-quick.json "$prefix=no"
cat >"$work/slow.json" <<-'END'
	{
	  "schema": "dimmer/probe/2",
	  "verdict": {
	    "effect": "yes",
	    "worst_pct": 12.6,
	    "next": "dimmer observe"
	  },
	  "results": [
	    {
	      "effect": "no"
	    }
	  ]
	}
END
expect "$work/slow.json" "$prefix=yes
$prefix-worst-pct=13"
: >"$work/empty.json"
expect "$work/empty.json" "label: $work/empty.json is no result of \`dimmer probe --json\` (dimmer/probe/2)"
sed 's/"yes"/"perhaps"/' "$work/slow.json" >"$work/other.json"
expect "$work/other.json" "label: $work/other.json: effect is \`perhaps\`, expected yes, no, open or not-measured"

if [ ! -x "$tools/kustomize" ]; then
	command -v go >/dev/null || { echo "check-kubernetes: skipped: go is missing, which builds kustomize"; exit 0; }
	mkdir -p "$tools"
	GOBIN=$(cd "$tools" && pwd) go install "sigs.k8s.io/kustomize/kustomize/v5@$KUSTOMIZE"
fi
"$tools/kustomize" build contrib/kubernetes >"$work/all.yaml"
kinds=$(sed -n 's/^kind: //p' "$work/all.yaml" | sort | tr '\n' ' ')
[ "$kinds" = "ConfigMap DaemonSet " ] || fail "kustomize gives $kinds"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
grep -q "image: registry.example/dimmer:$version\$" "$work/all.yaml" || fail "the image is not that of $version"
generated=$(sed -n 's/^  name: \(dimmer-label-.*\)/\1/p' "$work/all.yaml")
grep -q "name: $generated\$" "$work/all.yaml" || fail "the DaemonSet does not have the script"
passed "kustomize build"
