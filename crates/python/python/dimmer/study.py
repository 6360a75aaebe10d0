"""Many runs: on this machine's threads, on Dask, or on Ray.

A task is a pure function of a scenario's text, a model's text, a policy and a seed. Its key is a
digest of these, so a task that is run again, because its worker was lost, gives the same result
under the same key.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Union

from . import Model, ModelLike, PolicyLike, Result, Scenario, ScenarioLike
from . import _loaded, _model, _policies, _scenario, _seed, _seeds, _some, simulate
from ._dimmer import copied
from ._key import policy_key

__all__ = ["Task", "sweep", "tasks"]

#: How often Ray runs a task again after its worker was lost.
RETRIES = 5


@dataclass(frozen=True)
class Task:
    """A run to be done. An object as policy is copied: later changes of it do not matter."""

    scenario: Scenario = field(compare=False)
    model: Model = field(compare=False)
    policy: PolicyLike = field(compare=False)
    seed: int = field(compare=False)
    #: A digest of all that the result depends on.
    key: str = field(init=False)

    def __post_init__(self) -> None:
        _seed(self.seed)
        object.__setattr__(self, "policy", _own(self.policy))
        content = {
            "scenario": self.scenario.text,
            "files": self.scenario.files,
            "model": self.model.text,
            "policy": policy_key(self.policy),
            "seed": self.seed,
        }
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        object.__setattr__(self, "key", digest)

    def run(self) -> Result:
        """Runs it here."""
        return simulate(self.scenario, self.model, seed=self.seed, policy=_own(self.policy))


def _own(policy: PolicyLike) -> PolicyLike:
    """The same policy; an object is copied."""
    is_shared = policy is None or isinstance(policy, (str, type))
    return policy if is_shared else copied(policy)


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
    scenarios = _some("scenarios", scenarios)
    on = None if models is None else [_loaded(model) for model in _some("models", models)]
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
    of a task ends the sweep with that exception. It cancels what is pending, as Ctrl-C does.
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
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        try:
            futures = {pool.submit(_run, task): key for key, task in pending.items()}
            for future in as_completed(futures):
                found[futures[future]] = future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def _on_dask(pending: Mapping[str, Task], client: Any) -> dict[str, Result]:
    def submit(task: Task) -> Any:
        return client.submit(_run, task, key=f"dimmer-{task.key}", pure=True)

    return _gathered(pending, submit, client.gather, client.cancel)


def _on_ray(pending: Mapping[str, Task]) -> dict[str, Result]:
    import ray

    def cancel(futures: Sequence[Any]) -> None:
        for future in futures:
            ray.cancel(future)

    remote = ray.remote(max_retries=RETRIES, retry_exceptions=False)(_run)
    return _gathered(pending, remote.remote, ray.get, cancel)


def _gathered(
    pending: Mapping[str, Task],
    submit: Callable[[Task], Any],
    gather: Callable[[Sequence[Any]], Iterable[Result]],
    cancel: Callable[[Sequence[Any]], object],
) -> dict[str, Result]:
    """Results of an engine by the tasks' keys. After an exception, no task is pending there."""
    futures: list[Any] = []
    try:
        for task in pending.values():
            futures.append(submit(task))
        return dict(zip(pending, gather(futures)))
    except BaseException:
        cancel(futures)
        raise
