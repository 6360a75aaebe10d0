#!/bin/sh
# Metrics, alerts and dashboard against a real Prometheus: starts dimmerd with clients and a probe's
# textfile, lets Prometheus scrape both, runs every query of contrib/grafana/dimmer.json and of
# contrib/prometheus/dimmer.rules.yml by its HTTP API, and fails where one is wrong or has no data
# that must be there. promtool checks names, rules and the rules' own tests, ci/check-dashboard.py
# the dashboard, with Grafana's types from PyPI.
#
# usage: ci/check-metrics.sh [DIRECTORY]      apt-get install prometheus
#
# DIRECTORY has dimmer, dimmerd and examples/client [default: target/debug, built here]. Takes a
# minute and a half.
set -eu
cd "$(dirname "$0")/.."
GRAFANA_TYPES='1769699998!10.1.0'
for tool in promtool prometheus python3; do
    command -v $tool >/dev/null || { echo "SKIPPED: no $tool: apt-get install prometheus python3"; exit 0; }
done
built=${1:-${CARGO_TARGET_DIR:-target}/debug}
if [ $# -eq 0 ] && [ -z "${DIMMER_BUILT:-}" ]; then
    cargo build -q -p dimmer-daemon -p dimmer-cli
    cargo build -q -p dimmer-runtime --example client
fi
promtool check rules contrib/prometheus/dimmer.rules.yml
(cd contrib/prometheus && promtool test rules dimmer.test.yml)
types=${CARGO_TARGET_DIR:-target}/grafana-types
if [ "$(cat "$types/version" 2>/dev/null)" != "$GRAFANA_TYPES" ]; then
    rm -rf "$types"
    if python3 -m venv "$types" && "$types/bin/pip" install -q "grafana-foundation-sdk==$GRAFANA_TYPES"; then
        echo "$GRAFANA_TYPES" >"$types/version"
    elif [ -n "${CI:-}" ]; then
        exit 1
    fi
fi
if [ -e "$types/version" ]; then
    "$types/bin/python" ci/check-dashboard.py contrib/grafana/dimmer.json
else
    echo "SKIPPED: dashboard lint: no grafana-foundation-sdk $GRAFANA_TYPES from PyPI"
fi

place=$(mktemp -d)
running=
# shellcheck disable=SC2086 # each number is a word
trap 'kill $running 2>/dev/null || true; wait; rm -rf "$place"' EXIT
trap 'exit 130' INT TERM
ports=$(python3 - <<'END'
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(one.getsockname()[1] for one in sockets))
END
)
set -- $ports
export DIMMER_SOCKET="$place/socket" XDG_STATE_HOME="$place/state" XDG_CACHE_HOME="$place/cache"

# With a model that has license levels, regions have a clock.
printf '[server]\nmodel = "%s"\n[metrics]\nlisten = "127.0.0.1:%s"\nper_client = true\n' \
    "$PWD/models/i9-7940x.toml" "$1" >"$place/dimmerd.toml"
"$built/dimmerd" --config "$place/dimmerd.toml" 2>"$place/dimmerd.log" &
running="$running $!"
"$built/dimmer" probe -q --quick --mode episode,downclock --kernel vmulpd-256-unrolled,add-scalar-unrolled \
    --repetitions 40 --textfile "$place/probe.prom" >/dev/null
promtool check metrics <"$place/probe.prom"
(cd "$place" && exec python3 -m http.server -b 127.0.0.1 "$2" 2>/dev/null >&2) &
running="$running $!"
cat >"$place/prometheus.yml" <<END
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: ["$PWD/contrib/prometheus/dimmer.rules.yml"]
scrape_configs:
  - {job_name: dimmerd, static_configs: [{targets: ["127.0.0.1:$1"]}]}
  - {job_name: node, metrics_path: /probe.prom, static_configs: [{targets: ["127.0.0.1:$2"]}]}
END
prometheus --config.file="$place/prometheus.yml" --storage.tsdb.path="$place/data" \
    --web.listen-address="127.0.0.1:$3" --log.level=warn 2>"$place/prometheus.log" &
running="$running $!"
# One client ends while Prometheus scrapes, the other stays.
"$built/examples/client" 60000 >/dev/null &
running="$running $!"
sleep 3
"$built/examples/client" 8000 >/dev/null
sleep 15
python3 ci/check-metrics.py "http://127.0.0.1:$1" "http://127.0.0.1:$3"
