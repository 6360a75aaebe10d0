#!/bin/sh
# Three programs under a policy server of their own: one is killed, one lies, and the server itself is killed and started again.
# Shows what `dimmer top` and the metrics tell after each of that, and at the end whether the honest program got on undisturbed.
# Takes half a minute.
#
# usage: crates/daemon/examples/clients.sh [PORT]      the metrics' port on this machine; 19466 if none is given
set -eu
cd "$(dirname "$0")/../../.."
port=${1:-19466}
target=${CARGO_TARGET_DIR:-target}
cargo build --release --quiet --package dimmer-daemon --package dimmer-cli
cargo build --release --quiet --package dimmer-runtime --example client
cargo build --release --quiet --package dimmer-protocol --example liar

directory=$(mktemp -d)
processes=
end() {
    for process in $processes; do kill -KILL "$process" 2>/dev/null || :; done
    rm -rf "$directory"
}
trap end EXIT
export DIMMER_SOCKET="$directory/socket"
unset DIMMER_POLICY DIMMER_CORES
printf '[metrics]\nlisten = "127.0.0.1:%s"\n' "$port" >"$directory/dimmerd.toml"

serve() {
    "$target/release/dimmerd" --socket "$DIMMER_SOCKET" --config "$directory/dimmerd.toml" 2>>"$directory/log" &
    server=$!
    processes="$processes $server"
}
show() {
    printf '\n== %s\n' "$1"
    "$target/release/dimmer" top --once
    if command -v curl >/dev/null; then
        curl --silent --show-error "http://127.0.0.1:$port/metrics" | grep -E '^dimmer_(clients|impossible)|program="client"'
    fi
}

serve
sleep 1
"$target/release/examples/client" 20000 >"$directory/honest" &
honest=$!
"$target/release/examples/client" 60000 >/dev/null &
killed=$!
"$target/release/examples/liar" "$DIMMER_SOCKET" &
liar=$!
processes="$processes $honest $killed $liar"
sleep 5
show "an honest program, one that will be killed, and one that lies"
kill -KILL "$killed"
sleep 2
show "one was killed"
kill -KILL "$server"
sleep 2
serve
sleep 3
show "the server was killed, and another one has started"

wait "$honest" || { echo "the honest program has failed"; exit 1; }
printf '\n== what the honest program says of itself\n'
cat "$directory/honest"
# Where calls are frequent, one in 256 is looked at.
sed -E 's/^calls ([0-9]+), counted ([0-9]+),.*/\1 \2/' "$directory/honest" | awk '{
    off = ($2 - $1) / $1
    printf "It never stopped, and what was counted is off by %.2f %%.\n", 100 * off
    exit off * off > 0.02 * 0.02
}'
printf '\n== what the servers have logged\n'
cat "$directory/log"
