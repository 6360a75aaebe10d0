"""Sweeps on threads, on Dask and on Ray; on these two with a worker that is killed."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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


def test_a_sweep_has_a_thread_for_each_cpu_that_it_may_use(
    regions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, threads: int) -> None:
            started.append(threads)
            super().__init__(threads)

    monkeypatch.setattr(study, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7})
    study.sweep(of(regions, seeds=1))
    assert started == [3]


class Interrupted:
    """An engine whose user presses Ctrl-C while it runs tasks; has what Dask and Ray have."""

    scheduler = None

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.pending: "list[Any]" = []

    def submit(self, run: object, task: study.Task, **_: object) -> str:
        self.pending.append(task.key)
        return task.key

    def remote(self, **_: object) -> "Callable[[object], Interrupted.Remote]":
        return lambda run: Interrupted.Remote(self)

    def gather(self, futures: "list[str]") -> None:
        assert self.pending == futures
        raise KeyboardInterrupt

    get = gather

    def cancel(self, futures: "str | list[str]") -> None:
        for future in [futures] if isinstance(futures, str) else futures:
            self.pending.remove(future)

    class Remote:
        """A function of Ray."""

        def __init__(self, engine: "Interrupted") -> None:
            self.engine = engine

        def remote(self, task: study.Task) -> str:
            return self.engine.submit(None, task)


@pytest.mark.parametrize("name", ["dask", "ray"])
def test_ctrl_c_cancels_what_is_pending(
    name: str, regions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Interrupted(name)
    monkeypatch.setitem(sys.modules, "ray", engine)
    with pytest.raises(KeyboardInterrupt):
        study.sweep(of(regions), client=engine)
    assert engine.pending == []


def test_bad_input_is_refused(regions: str) -> None:
    with pytest.raises(TypeError, match="expected dimmer.study.Task, not str"):
        study.sweep(["task"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match='a dask.distributed.Client or "ray", not int'):
        study.sweep([], client=3)
    with pytest.raises(ValueError, match="unknown policy `best`, expected one of hardware"):
        study.tasks(regions, ["best"])
    with pytest.raises(TypeError, match="a list of policies, not str"):
        study.tasks(regions, "none")
    for name in ("scenarios", "policies", "models", "seeds"):
        arguments: "dict[str, Any]" = {"scenarios": [regions], name: []}
        with pytest.raises(ValueError, match=f"{name}: expected at least one"):
            study.tasks(**arguments)
    with pytest.raises(ValueError, match="no model or file `x`"):
        study.tasks(regions, models="x")
    with pytest.raises(TypeError, match="seed: expected an int, not str"):
        study.tasks(regions, seeds=["1"])  # type: ignore[list-item]


#: Simulated times (µs), until tasks take long enough for a worker to be killed among them.
LENGTHS = [300_000, 1_200_000, 4_800_000]


def swept(
    tasks: "list[study.Task]", client: Any, find: Callable[[], "int | None"]
) -> "tuple[dict[str, dimmer.Result], int | None]":
    """Sweeps while another thread looks for a process to kill. Returns which one was killed."""
    killed: "list[int]" = []
    failed: "list[BaseException]" = []
    over = threading.Event()

    def act() -> None:
        try:
            while not over.wait(0.005):
                victim = find()
                if victim is not None:
                    os.kill(victim, signal.SIGKILL)
                    killed.append(victim)
                    return
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    try:
        results = study.sweep(tasks, client=client)
    finally:
        over.set()
        thread.join()
    assert not failed, failed
    return results, killed[0] if killed else None


def check(regions: str, client: Any, find: "Callable[[list[study.Task]], int | None]") -> "int":
    """Sweeps with a worker killed in the middle: all results are there, and are the right ones."""
    for length in LENGTHS:
        tasks = of(regions, seeds=8, end_us=length)
        results, killed = swept(tasks, client, lambda: find(tasks))  # noqa: B023
        if killed is not None:
            assert list(results) == [task.key for task in tasks]
            assert results == study.sweep(tasks)
            return killed
    raise AssertionError("no worker was busy when it was looked at")


def test_dask_loses_nothing_when_a_worker_is_killed(regions: str) -> None:
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    )
    with cluster, distributed.Client(cluster) as client:
        pids = client.run(os.getpid)

        def busy(tasks: "list[study.Task]") -> "int | None":
            ready = sum(len(held) for held in client.has_what().values())
            works = [worker for worker, own in client.processing().items() if own]
            in_the_middle = 0 < ready < len(tasks) and len(works) == 2
            return pids[works[0]] if in_the_middle else None

        killed = check(regions, client, busy)
        assert killed not in client.run(os.getpid).values()


class Counted(dimmer.Policy):
    """Counts its runs in a file, and fails in each."""

    def __init__(self, file: str) -> None:
        self.file = file

    def decide(self, group: int, density: "list[float]") -> str:
        with open(self.file, "a") as file:
            file.write("run\n")
        raise LookupError("a policy that fails")


def test_on_dask_an_exception_comes_out_after_one_run(regions: str, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    )
    runs = tmp_path / "runs"
    with cluster, distributed.Client(cluster) as client:
        with pytest.raises(LookupError, match="a policy that fails") as failed:
            study.sweep(study.tasks(regions, [Counted(str(runs))]), client=client)
        assert runs.read_text() == "run\n"
        assert not client.futures, "the frames of the exception have them still"
        assert failed.tb


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
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        _node_ip_address="127.0.0.1",
    )
    try:
        check(regions, "ray", lambda _: next(iter(running()), None))
        # An exception of a task is of its own type.
        with pytest.raises(ValueError, match="muqss"):
            study.sweep(study.tasks(regions, ["specialise"]), client=ray)
    finally:
        ray.shutdown()
