"""The simulator of Dimmer, its policies, and marked regions, for Python.

``simulate`` runs a scenario on a processor model, ``compare`` several policies on one, and
``dimmer.study`` runs many tasks on threads, Dask or Ray. A policy is a name, or an object with the
methods of :class:`Policy`. ``region`` marks what a program runs, for ``dimmerd``.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, Protocol, TypeVar, Union

from ._dimmer import Model, Region, Scenario, dedicated_cores, metric, models, policies, scenarios
from . import _dimmer

__all__ = [
    "Comparison",
    "Model",
    "Policy",
    "Region",
    "Result",
    "Scenario",
    "compare",
    "dedicated_cores",
    "metric",
    "models",
    "policies",
    "region",
    "region_statistics",
    "scenarios",
    "simulate",
    "table",
]

#: A scenario, the name of one that comes with Dimmer, a path, or a TOML text.
ScenarioLike = Union[Scenario, str, "os.PathLike[str]"]
#: A model, the name of one that comes with Dimmer, a path, or a TOML text.
ModelLike = Union[Model, str, "os.PathLike[str]"]


class Policy:
    """A policy loop: decides which groups of calls of marked regions move to dedicated cores.

    A group is the calls of one region of one program. Only ``decide`` is needed; a subclass
    defines of the others what it wants to be informed of. The contract is that of Dimmer's own
    loops: equal calls give equal results, and ``decide`` gives the same answer for the same group
    and density until another method is called. An exception ends the run.

    Optional attributes, read at the start:

    * ``name``: the policy's name in results; that of the class if absent;
    * ``window_ms``: length of a window, over which performance is measured; 1000 if absent;
    * ``settling_ms``: how long a change takes to settle; absent: the next window starts at once;
    * ``negligible``: the share of wide SIMD code up to which code counts as scalar; 0.01;
    * ``skips_first_window``: whether a client's first window says nothing about it; True;
    * ``counts_moved_calls``: whether moved calls are evidence about their code; False.

    Optional methods:

    * ``window(now_ms, change, moved) -> bool``: ends a window. ``change``: the change of
      performance since the window before, in parts, or None if unknown; ``moved``: number of units
      that are moved. Returns whether any group must be decided again;
    * ``passed(windows)``: windows have passed; called before ``window``;
    * ``ends_early() -> bool``: whether the present window has to end now;
    * ``own(group, user)``: a group belongs to this user;
    * ``candidate(group, is_one)``: a member of the group may be moved, or no longer;
    * ``expect(group, gain)``: by the model, moving the group brings this, in parts of performance;
    * ``spend(group, longer_ns, worked_ns)``: by how much moved calls lasted longer than those that
      stayed, and how long the dedicated core worked;
    * ``rest(group)``, ``forget(group)``: the last member has gone; the number may be used again.
    """

    def decide(self, group: int, density: list[float]) -> str:
        """Returns ``"move"`` or ``"stay"`` for a group's calls.

        ``density``: the shares (0 to 1) of code of the license levels L1, L2, L3, L4 in them.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method `decide`")


class _Decides(Protocol):
    """What type checkers accept as a policy: an object with ``decide``."""

    def decide(self, group: int, density: list[float], /) -> str: ...


#: A name of :func:`policies`, an object or class with the methods of :class:`Policy`, or None: the
#: processor's own governor, ``hardware``.
PolicyLike = Union[str, _Decides, type[_Decides], None]

_Given = TypeVar("_Given")


class _Document:
    """A document of ``dimmer sim``: its keys are attributes."""

    _document: dict[str, Any]

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = dict(document)

    def __getattr__(self, name: str) -> Any:
        document = self.__dict__.get("_document", {})
        try:
            return document[name]
        except KeyError:
            keys = ", ".join(document)
            raise AttributeError(f"no key {name!r}, expected one of {keys}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._document]

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._document == self._document

    def __hash__(self) -> int:
        return hash(json.dumps(self._document, sort_keys=True))

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return type(self), (self._document,)

    def to_dict(self) -> dict[str, Any]:
        """The document, as ``dimmer sim`` writes it with ``--json``."""
        return copy.deepcopy(self._document)


class Result(_Document):
    """The result of a run: the document ``dimmer/sim/1``, described in ``docs/sim-json.md``."""

    scenario: str
    source: str
    model: str
    governor: str
    loop: str
    seed: int
    end_us: float
    segments: int
    threads: list[dict[str, Any]]
    cores: list[dict[str, Any]]
    packages: Optional[list[dict[str, Any]]]

    def __repr__(self) -> str:
        return (
            f"<dimmer.Result {self.scenario!r} on {self.model}, {self.policy}, seed {self.seed}: "
            f"{self.end_us:g} us>"
        )

    @property
    def policy(self) -> str:
        """What decided: the loop, or the governor where there is none."""
        return self.loop if self.loop != "none" or self.governor == "hardware" else self.governor


class Comparison(_Document):
    """The result of :func:`compare`: ``dimmer/compare/1`` or ``dimmer/compare-loops/1``."""

    def __repr__(self) -> str:
        ways = self._document.get("loops", self._document.get("governors", []))
        names = ", ".join(str(way.get("loop", way.get("governor"))) for way in ways)
        return f"<dimmer.Comparison {self.scenario!r} on {self.model}, {self.runs} runs of {names}>"


def _scenario(scenario: ScenarioLike, overrides: Mapping[str, Any]) -> Scenario:
    if not isinstance(scenario, Scenario):
        scenario = Scenario.load(scenario)
    return scenario.replace(**overrides) if overrides else scenario


def _model(model: Optional[ModelLike], scenario: Scenario) -> Model:
    return _loaded(scenario.model if model is None else model)


def _loaded(model: ModelLike) -> Model:
    return model if isinstance(model, Model) else Model.load(model)


def _seed(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed: expected an int, not {type(seed).__name__}")
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed is {seed}, expected 0 to {(1 << 64) - 1}")
    return seed


def _seeds(seeds: Union[int, Iterable[int]]) -> list[int]:
    """Seeds, or seeds 1 to a number."""
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        own = list(range(1, seeds + 1))
    elif isinstance(seeds, Iterable):
        own = [_seed(seed) for seed in seeds]
    else:
        raise TypeError(f"seeds: expected a number or a list, not {type(seeds).__name__}")
    return _some("seeds", own)


def _some(name: str, given: Iterable[_Given]) -> list[_Given]:
    """What is given, as a list that is not empty."""
    own = list(given)
    if not own:
        raise ValueError(f"{name}: expected at least one")
    return own


def _policies(policies: Iterable[PolicyLike]) -> list[PolicyLike]:
    if isinstance(policies, (str, bytes)) or not isinstance(policies, Iterable):
        found = type(policies).__name__
        raise TypeError(f"policies: expected a list of policies, not {found}")
    return _some("policies", policies)


def simulate(
    scenario: ScenarioLike,
    model: Optional[ModelLike] = None,
    *,
    seed: int = 1,
    policy: PolicyLike = None,
    **overrides: Any,
) -> Result:
    """Simulates a scenario on a model; the one that the scenario names, if None is given.

    * ``seed``: the same seed gives the same result;
    * ``policy``: a name of :func:`policies`, or an object or class like :class:`Policy`; None: the
      processor's own governor, and regions stay;
    * ``overrides``: other values of keys at the top of the scenario, such as ``cores`` or
      ``end_us``; None removes a key, also from the files that the scenario includes.

    Raises ``ValueError`` with Dimmer's message for what it refuses, and whatever a policy raises.
    Other Python threads run meanwhile.
    """
    of = _scenario(scenario, overrides)
    return Result(json.loads(_dimmer.simulate(of, _model(model, of), policy, _seed(seed))))


def compare(
    scenario: ScenarioLike,
    policies: Iterable[PolicyLike],
    model: Optional[ModelLike] = None,
    *,
    seeds: Union[int, Iterable[int]] = 30,
    **overrides: Any,
) -> Comparison:
    """Compares policies on one scenario, each with all seeds, on all processors.

    Governors are compared with ``hardware``, and what moves code with ``none``; one kind at a time.
    Each run has an object of its own of a policy in Python: one that its class makes, or a copy.
    Policies in Python have different names (the attribute ``name``, or the class's).

    * ``policies``: as in :func:`simulate`; None is ``hardware``;
    * ``seeds``: seeds, or their number: 1 to that.
    """
    ways, own = _policies(policies), _seeds(seeds)
    of = _scenario(scenario, overrides)
    return Comparison(json.loads(_dimmer.compare(of, _model(model, of), ways, own)))


def table(
    results: Union[Mapping[str, Result], Iterable[Result]], rows: str = "run"
) -> dict[str, list[Any]]:
    """Results as columns, which pandas, Polars and pyarrow take as they are.

    * ``results``: results, or what ``dimmer.study.sweep`` returns: then the first column is
      ``key``;
    * ``rows``: ``"run"``, one row for each result; ``"thread"``; or ``"core"``.

    ``docs/python.md`` describes the columns.
    """
    kinds = {"run": _rows_of_run, "thread": _rows_of_threads, "core": _rows_of_cores}
    if rows not in kinds:
        raise ValueError(f"rows is {rows!r}, expected one of {', '.join(kinds)}")
    found: list[dict[str, Any]] = []
    pairs: Iterable[tuple[Optional[str], Any]] = (
        results.items() if isinstance(results, Mapping) else ((None, one) for one in results)
    )
    for key, result in pairs:
        if not isinstance(result, Result):
            raise TypeError(f"results: expected Result, not {type(result).__name__}")
        run = {
            **({} if key is None else {"key": key}),
            "scenario": result.scenario,
            "model": result.model,
            "policy": result.policy,
            "seed": result.seed,
        }
        found.extend({**run, **row} for row in kinds[rows](result))
    names = list(dict.fromkeys(name for row in found for name in row))
    return {name: [row.get(name) for row in found] for name in names}


def _work(threads: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    served = [thread["latencies_us"] for thread in threads if "latencies_us" in thread]
    return {
        "instructions": sum(phase["instructions"] for one in threads for phase in one["phases"]),
        "calls": sum(thread["calls"] for thread in threads),
        "moved": sum(thread["moved"] for thread in threads),
        "traps": sum(thread["traps"] for thread in threads),
        "requests": sum(latencies["requests"] for latencies in served) if served else None,
        "p50_us": max(latencies["p50"] for latencies in served) if served else None,
        "p99_us": max(latencies["p99"] for latencies in served) if served else None,
    }


def _rows_of_run(result: Result) -> list[dict[str, Any]]:
    packages = result.packages
    joules = sum(package["joules"] for package in packages) if packages else None
    times = ("throttled_us", "still_us", "governor_us", "delayed_us", "idle_us", "changes")
    cores = {name: sum(core[name] for core in result.cores) for name in times}
    return [{"end_us": result.end_us, **_work(result.threads), **cores, "joules": joules}]


def _rows_of_threads(result: Result) -> list[dict[str, Any]]:
    return [
        {"thread": one["name"], "finished_us": one["finished_us"], **_work([one])}
        for one in result.threads
    ]


def _rows_of_cores(result: Result) -> list[dict[str, Any]]:
    return [
        {
            "core": number,
            **{f"{level['name']}_us": level["time_us"] for level in core["levels"]},
            **{name: value for name, value in core.items() if name not in ("levels", "energy")},
            "joules": core["energy"]["joules"] if core["energy"] else None,
        }
        for number, core in enumerate(result.cores)
    ]


def region(name: str) -> Region:
    """A marked region, for ``with``: ``with dimmer.region("transform"): ...``.

    It runs where ``DIMMER_POLICY`` or ``dimmerd`` decides (``docs/runtime.md``); without either,
    where it is. ``docs/python.md`` says what the interpreter's lock means for regions that move.
    """
    caller = sys._getframe(1)
    return Region(name, caller.f_code.co_filename, caller.f_lineno)


def region_statistics(name: str) -> Optional[dict[str, Any]]:
    """``calls`` and ``mean_ns`` of a region, estimated from samples; None if it never was used."""
    found = _dimmer.region_statistics(name)
    return None if found is None else {"calls": found[0], "mean_ns": found[1]}
