#!/usr/bin/env python3
"""The part of ci/check-metrics.sh that asks: passes what dimmerd exports to promtool, and each query
of the dashboard and of the alerts to Prometheus. Prints each query with its answer.

usage: ci/check-metrics.py DIMMERD PROMETHEUS
"""

import json
import re
import subprocess
import sys
import urllib.parse
import urllib.request

# Metrics that need not be there, and why.
MAY_LACK = {
    "dimmer_probe_burst_cost_seconds": "wide SIMD code may cost nothing on this machine",
}
VARIABLES = {"$job": ".+", "$instance": ".+", "$__rate_interval": "10s"}
METRIC = re.compile(r"dimmer_\w+")


def fetch(url, accept="*/*"):
    request = urllib.request.Request(url, headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        sys.exit(f"{url}: {error.code} {error.read().decode()}")


def ask(prometheus, path, **arguments):
    answer = json.loads(fetch(f"{prometheus}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"))
    if answer["status"] != "success":
        sys.exit(f"{arguments}: {answer}")
    return answer["data"]


def query(prometheus, expression):
    return ask(prometheus, "query", query=expression)["result"]


def filled(expression):
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    if "$" in expression:
        sys.exit(f"{expression}: has a variable that is not known here")
    return expression


def shown(result):
    def one(sample):
        labels = ",".join(f"{name}={value}" for name, value in sample["metric"].items())
        return f"{{{labels}}} {float(sample['value'][1]):.6g}"
    return "; ".join(map(one, result[:3])) + (f"; {len(result) - 3} more" if len(result) > 3 else "")


def check_dashboard(prometheus, known):
    with open("contrib/grafana/dimmer.json") as file:
        dashboard = json.load(file)
    problems, panels = [], [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    for panel in panels:
        for target in panel["targets"]:
            expression = filled(target["expr"])
            result = query(prometheus, expression)
            print(f"{panel['title']}: {target['expr']}\n    {shown(result) or 'nothing'}")
            metrics = METRIC.findall(expression)
            lacking = [name for name in metrics if name not in known and name not in MAY_LACK]
            if lacking or not result and not any(name in MAY_LACK for name in metrics):
                problems.append(f"{panel['title']}: {expression}: nothing ({lacking or 'no data'})")
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()
            series = ask(prometheus, "series", **{"match[]": filled(selector)})
            values = {one[label] for one in series}
            print(f"variable {variable['name']}: {', '.join(sorted(values))}")
            if not values:
                problems.append(f"variable {variable['name']} has no value")
    print(f"dashboard: {len(panels)} panels")
    return problems


def check_alerts(prometheus, known):
    problems = []
    rules = [rule for group in ask(prometheus, "rules")["groups"] for rule in group["rules"]]
    for rule in rules:
        result = query(prometheus, rule["query"])
        print(f"alert {rule['name']}: {rule['health']}, {rule['state']}; {shown(result) or 'nothing'}")
        lacking = set(METRIC.findall(rule["query"])) - known - set(MAY_LACK)
        if rule["health"] != "ok" or lacking:
            problems.append(f"alert {rule['name']}: {rule.get('lastError', '')} {lacking or ''}")
    if not rules:
        problems.append("Prometheus has no alerts")
    return problems


def check_counters(prometheus, known):
    """A client has ended, and its calls are still counted; no counter went back or vanished."""
    calls = query(prometheus, 'dimmer_program_calls_total{program="client"}')
    connected = query(prometheus, 'dimmer_program_connections_total{program="client"} - on (program, unit) '
                                  'dimmer_program_clients')
    print(f"counters: {shown(calls)}; ended: {shown(connected)}")
    problems = []
    if not calls or float(calls[0]["value"][1]) <= 0 or not connected or float(connected[0]["value"][1]) < 1:
        problems.append("no client has ended whose calls are still there")
    names = [name for name in known if re.fullmatch(r"dimmer_program_\w+_total", name)]
    for name in names:
        back = query(prometheus, f"resets({name}[1m]) > 0")
        gone = query(prometheus, f"last_over_time({name}[1m]) unless {name}")
        if back or gone:
            problems.append(f"{name} went back or vanished: {shown(back + gone)}")
    if not names:
        problems.append("there are no counters of programs")
    return problems


def check_promtool(dimmerd):
    problems = []
    for kind in ("text/plain", "application/openmetrics-text"):
        text = fetch(f"{dimmerd}/metrics", kind)
        if kind != "text/plain":
            # promtool reads Prometheus' own format only.
            if not text.endswith("# EOF\n"):
                problems.append("OpenMetrics does not end with # EOF")
            continue
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
        said = (checked.stdout + checked.stderr).strip()
        print(f"promtool check metrics: {checked.returncode}, {said or 'nothing to say'}; "
              f"{text.count('# TYPE ')} metrics")
        if checked.returncode != 0 or said:
            problems.append(f"promtool: {said}")
    return problems


def main(dimmerd, prometheus):
    problems = check_promtool(dimmerd)
    targets = ask(prometheus, "targets")["activeTargets"]
    problems += [f"{one['scrapeUrl']}: {one['lastError']}" for one in targets if one["health"] != "up"]
    known = set(ask(prometheus, "label/__name__/values"))
    problems += check_counters(prometheus, known)
    problems += check_dashboard(prometheus, known)
    problems += check_alerts(prometheus, known)
    for problem in problems:
        print(f"WRONG: {problem}")
    print("wrong" if problems else "metrics: as they should be")
    sys.exit(bool(problems))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
