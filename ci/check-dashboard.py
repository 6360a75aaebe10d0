#!/usr/bin/env python3
"""Lints the dashboard: whether Grafana's own types (grafana-foundation-sdk) have all of its keys, and
rules like those of Grafana's dashboard-linter, which is not to be had from the registries. Then
breaks copies of it, each of which must be refused. That queries have data: ci/check-metrics.py.

usage: ci/check-dashboard.py DASHBOARD
"""

import copy
import json
import sys

from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as types

# What Grafana's editor writes and the types do not have: a copy of a variable's query.
EXTRA = "definition"
COLUMNS = 24


def lost(own, read, path):
    """What is not the same after the types have read and written it."""
    if isinstance(own, dict) and isinstance(read, dict):
        for key, value in own.items():
            if key not in read:
                if key != EXTRA or value != own["query"]["query"]:
                    yield f"{path}.{key}: no such key, or another type"
            else:
                yield from lost(value, read[key], f"{path}.{key}")
    elif isinstance(own, list) and isinstance(read, list) and len(own) == len(read):
        for number, (one, other) in enumerate(zip(own, read)):
            yield from lost(one, other, f"{path}[{number}]")
    elif own != read:
        yield f"{path}: {own!r} is read as {read!r}"


def cells(panel):
    place = panel["gridPos"]
    return {(x, y) for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])}


def panel_problems(panel):
    if panel["type"] == "row":
        return
    for key in ("title", "description"):
        if not panel.get(key):
            yield f"no {key}"
    if panel["datasource"] != {"type": "prometheus", "uid": "${datasource}"}:
        yield "the data source is not the variable"
    if panel["type"] in ("timeseries", "stat", "gauge") and not panel["fieldConfig"]["defaults"].get("unit"):
        yield "no unit"
    names = [target["refId"] for target in panel["targets"]]
    if not names or len(set(names)) < len(names):
        yield f"targets {names}: none, or one name twice"
    for target in panel["targets"]:
        query = target["expr"]
        for label in ("job", "instance"):
            if query.count(f'{label}=~"${label}"') < query.count("dimmer_"):
                yield f"{query}: a metric without {label}"
        # An increase may be that of a time that its panel names.
        if "rate(" in query and "[$__" not in query:
            yield f"{query}: a range that does not follow the screen's"
        if panel["type"] == "timeseries" and not target.get("legendFormat"):
            yield f"{query}: no legend"


def problems(dashboard):
    try:
        read = json.loads(JSONEncoder().encode(types.Dashboard.from_json(copy.deepcopy(dashboard))))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return [f"Grafana's types do not read it: {error!r}"]
    found = list(lost(dashboard, read, "dashboard"))
    taken, ids = set(), []
    for panel in dashboard["panels"]:
        name = panel.get("title") or f"panel {panel.get('id')}"
        found += [f"{name}: {problem}" for problem in panel_problems(panel)]
        own = cells(panel)
        if own & taken or max(x for x, _ in own) >= COLUMNS:
            found.append(f"{name}: over another panel, or over the edge")
        taken |= own
        ids.append(panel["id"])
    if len(set(ids)) < len(ids):
        found.append(f"panels {ids}: one id twice")
    return found


def main(path):
    plugins.register_default_plugins()
    with open(path) as file:
        dashboard = json.load(file)
    found = problems(dashboard)
    for problem in found:
        print(f"{path}: {problem}")
    index = next(at for at, one in enumerate(dashboard["panels"]) if one["type"] == "timeseries")
    faults = {
        "a key that Grafana does not know": lambda panel: panel.update(titel="x"),
        "no title": lambda panel: panel.pop("title"),
        "no unit": lambda panel: panel["fieldConfig"]["defaults"].pop("unit"),
        "a metric of all hosts": lambda panel: panel["targets"][0].update(expr="dimmer_build_info"),
        "no legend": lambda panel: panel["targets"][0].pop("legendFormat"),
        "over the edge": lambda panel: panel["gridPos"].update(x=23),
    }
    for name, breaks in faults.items():
        broken = copy.deepcopy(dashboard)
        breaks(broken["panels"][index])
        if len(problems(broken)) <= len(found):
            sys.exit(f"the linter does not find: {name}")
    print(f"dashboard lint: {len(dashboard['panels'])} panels, {len(found)} problems; "
          f"{len(faults)} broken copies refused")
    if found:
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
