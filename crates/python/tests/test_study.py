"""Sweeps on threads, on Dask and on Ray; on these two with a worker that is killed."""

import os
import signal
import threading
import time
from typing import Any

import pytest

import dimmer
from dimmer import study


class Dense(dimmer.Policy):
    """Moves dense code."""

    def __init__(self, least: float) -> None:
        self.least = least

    def decide(self, group: int, density: "list[float]") -> str:
        return "move" if max(density) > self.least else "stay"


def of(regions: str, seeds: int = 4, end_us: int = 20_000) -> "list[study.Task]":
    policies = ["none", "trials", Dense(0.5)]
    models = ["i9-7940x", "xeon-gold-6130"]
    return study.tasks(regions, policies, models, seeds=seeds, end_us=end_us)


def test_every_task_has_one_result_by_its_key(regions: str) -> None:
    tasks = of(regions)
    results = study.sweep(tasks + tasks[:5])
    assert list(results) == [task.key for task in tasks] and len(results) == 24
    for task in tasks[::5]:
        result = results[task.key]
        assert (result.seed, result.model) == (task.seed, task.model.name)
        assert result == task.run()


def test_what_is_done_is_not_run_again(regions: str) -> None:
    tasks = of(regions, seeds=1)
    done = {tasks[0].key: dimmer.Result({"made": "up"})}
    assert study.sweep(tasks, done=done)[tasks[0].key].made == "up"


def test_an_exception_of_a_task_ends_the_sweep(regions: str) -> None:
    tasks = study.tasks(regions, ["none", "specialise"])
    with pytest.raises(ValueError, match="muqss"):
        study.sweep(tasks)


def test_bad_input_is_refused(regions: str) -> None:
    with pytest.raises(TypeError, match="expected dimmer.study.Task, not str"):
        study.sweep(["task"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="a dask.distributed.Client or \"ray\", not int"):
        study.sweep([], client=3)
    with pytest.raises(ValueError, match="unknown policy `best`, expected one of hardware"):
        study.tasks(regions, ["best"])
    with pytest.raises(TypeError, match="a list of policies, not str"):
        study.tasks(regions, "none")
    with pytest.raises(ValueError, match="no model or file `x`"):
        study.tasks(regions, models="x")
    with pytest.raises(TypeError, match="seed: expected an int, not str"):
        study.tasks(regions, seeds=["1"])  # type: ignore[list-item]


def swept(tasks: "list[study.Task]", client: Any, meanwhile: Any) -> "dict[str, dimmer.Result]":
    """Sweeps while another thread does something, which must have been done before the end."""
    failed: "list[BaseException]" = []

    def act() -> None:
        try:
            meanwhile()
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    results = study.sweep(tasks, client=client)
    thread.join()
    assert not failed, failed
    return results


def wait_for(condition: Any, what: str) -> Any:
    until = time.monotonic() + 600
    while time.monotonic() < until:
        found = condition()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError(f"waited in vain for {what}")


def test_dask_loses_nothing_when_a_worker_is_killed(regions: str) -> None:
    distributed = pytest.importorskip("distributed")
    tasks = of(regions, seeds=8, end_us=300_000)
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    )
    with cluster, distributed.Client(cluster) as client:
        pids = client.run(os.getpid)

        def kill() -> None:
            def busy() -> Any:
                ready = sum(len(held) for held in client.has_what().values())
                works = [worker for worker, own in client.processing().items() if own]
                return works if 0 < ready < len(tasks) / 2 and len(works) == 2 else None

            victim = wait_for(busy, "a sweep in the middle")[0]
            os.kill(pids[victim], signal.SIGKILL)

        results = swept(tasks, client, kill)
        lost = [pid for pid in pids.values() if pid not in client.run(os.getpid).values()]
        assert len(lost) == 1
    assert results == study.sweep(tasks)
    assert list(results) == [task.key for task in tasks]


def running() -> "list[int]":
    """The processes below this one in which Ray runs a task of a sweep."""
    children: "dict[int, list[int]]" = {}
    names: "dict[int, bytes]" = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as stat, open(f"/proc/{entry}/cmdline", "rb") as line:
                parent = int(stat.read().rpartition(")")[2].split()[1])
                names[int(entry)] = line.read()
        except OSError:
            continue
        children.setdefault(parent, []).append(int(entry))
    pending, found = [os.getpid()], []
    while pending:
        own = children.get(pending.pop(), [])
        found += [pid for pid in own if names[pid].startswith(b"ray::_run")]
        pending += own
    return found


def test_ray_loses_nothing_when_a_worker_is_killed(
    regions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    # Workers import the module of the policy's class.
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(__file__))
    tasks = of(regions, seeds=8, end_us=300_000)
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        _node_ip_address="127.0.0.1",
    )
    try:
        killed: "list[int]" = []

        def kill() -> None:
            victim = wait_for(running, "a worker of Ray's that runs a task")[0]
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)

        results = swept(tasks, "ray", kill)
        assert len(killed) == 1 and not os.path.exists(f"/proc/{killed[0]}")
    finally:
        ray.shutdown()
    assert results == study.sweep(tasks)
