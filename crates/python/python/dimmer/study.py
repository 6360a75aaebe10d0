"""Many runs: on this machine's threads, on Dask, or on Ray.

A task is a pure function of a scenario's text, a model's text, a policy and a seed. Its key is a
digest of these, so a task that is run again, because its worker was lost, gives the same result
under the same key.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from . import Model, ModelLike, Policy, PolicyLike, Result, Scenario, ScenarioLike, policies
from . import _loaded, _model, _policies, _scenario, _seed, _seeds, simulate

_names = policies

__all__ = ["Task", "sweep", "tasks"]

#: How often a task is run again after its worker was lost.
RETRIES = 5


@dataclass(frozen=True)
class Task:
    """A run to be done."""

    scenario: Scenario = field(compare=False)
    model: Model = field(compare=False)
    policy: PolicyLike = field(compare=False)
    seed: int = field(compare=False)
    #: A digest of all that the result depends on.
    key: str = field(init=False)

    def __post_init__(self) -> None:
        _seed(self.seed)
        content = {
            "scenario": self.scenario.text,
            "files": self.scenario.files,
            "model": self.model.text,
            "policy": _policy_key(self.policy),
            "seed": self.seed,
        }
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        object.__setattr__(self, "key", digest)

    def run(self) -> Result:
        """Runs it here."""
        policy = self.policy
        if policy is not None and not isinstance(policy, (str, type)):
            policy = copy.deepcopy(policy)
        return simulate(self.scenario, self.model, seed=self.seed, policy=policy)


def _policy_key(policy: PolicyLike) -> Any:
    """What distinguishes a policy: its name, or its class's source and its own state."""
    if policy is None or isinstance(policy, str):
        if policy is not None and policy not in _names():
            raise ValueError(f"unknown policy `{policy}`, expected one of {', '.join(_names())}")
        return policy
    if hasattr(policy, "key"):
        return ["key", str(policy.key)]
    of = policy if isinstance(policy, type) else type(policy)
    own = [one for one in of.__mro__ if one not in (object, Policy)]
    try:
        source = [inspect.getsource(one) for one in own]
    except (OSError, TypeError):
        raise ValueError(
            f"policy {of.__name__}: its source is not known, so it needs an attribute `key`, a "
            "text that is another one for another behavior"
        ) from None
    state = {} if policy is of else {name: repr(value) for name, value in vars(policy).items()}
    return ["class", of.__qualname__, source, state]


def tasks(
    scenarios: Union[ScenarioLike, Iterable[ScenarioLike]],
    policies: Iterable[PolicyLike] = (None,),
    models: Optional[Iterable[ModelLike]] = None,
    seeds: Union[int, Iterable[int]] = 1,
    **overrides: Any,
) -> list[Task]:
    """Tasks for each scenario, model, policy and seed.

    * ``models``: None: for each scenario the model that it names;
    * ``seeds``: seeds, or their number: 1 to that;
    * ``overrides``: as in :func:`dimmer.simulate`.
    """
    if isinstance(scenarios, (str, os.PathLike, Scenario)):
        scenarios = [scenarios]
    if isinstance(models, (str, os.PathLike, Model)):
        models = [models]
    on = None if models is None else [_loaded(model) for model in models]
    ways, own = _policies(policies), _seeds(seeds)
    made: list[Task] = []
    for scenario in scenarios:
        of = _scenario(scenario, overrides)
        for model in [_model(None, of)] if on is None else on:
            made.extend(Task(of, model, policy, seed) for policy in ways for seed in own)
    return made


def sweep(
    tasks: Iterable[Task],
    client: Any = None,
    *,
    done: Optional[Mapping[str, Result]] = None,
) -> dict[str, Result]:
    """Runs tasks, and returns their results by the tasks' keys, in the order of the tasks.

    * ``client``: None: threads of this process; a ``dask.distributed.Client``; or ``"ray"``, or
      the module ``ray``, for the cluster that Ray is connected to;
    * ``done``: results of an earlier sweep, which are not run again.

    Equal tasks are run once. A task whose worker is lost is run again by the engine. An exception
    of a task ends the sweep with that exception.
    """
    known = dict(done or {})
    wanted = {}
    for task in tasks:
        if not isinstance(task, Task):
            raise TypeError(f"tasks: expected dimmer.study.Task, not {type(task).__name__}")
        wanted[task.key] = task
    pending = {key: task for key, task in wanted.items() if key not in known}
    if client is None:
        found = _on_threads(pending)
    elif client == "ray" or getattr(client, "__name__", None) == "ray":
        found = _on_ray(pending)
    elif hasattr(client, "submit") and hasattr(client, "scheduler"):
        found = _on_dask(pending, client)
    else:
        raise TypeError(
            'client: expected None, a dask.distributed.Client or "ray", not '
            f"{type(client).__name__}"
        )
    return {key: known[key] if key in known else found[key] for key in wanted}


def _run(task: Task) -> Result:
    return task.run()


def _on_threads(pending: Mapping[str, Task]) -> dict[str, Result]:
    found = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = {pool.submit(_run, task): key for key, task in pending.items()}
        try:
            for future in as_completed(futures):
                found[futures[future]] = future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def _on_dask(pending: Mapping[str, Task], client: Any) -> dict[str, Result]:
    futures = {
        key: client.submit(_run, task, key=f"dimmer-{key}", pure=True, retries=RETRIES)
        for key, task in pending.items()
    }
    return dict(zip(futures, client.gather(list(futures.values()))))


def _on_ray(pending: Mapping[str, Task]) -> dict[str, Result]:
    import ray

    remote = ray.remote(max_retries=RETRIES, retry_exceptions=False)(_run)
    futures = {key: remote.remote(task) for key, task in pending.items()}
    return dict(zip(futures, ray.get(list(futures.values()))))
