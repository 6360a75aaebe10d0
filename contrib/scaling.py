#!/usr/bin/env python3
"""How much sooner a sweep is done on two workers than on one: with Dask and with Ray.

    contrib/scaling.py --rounds 9 --seeds 20

Needs the package `dimmer` (docs/python.md), dask.distributed and ray; what is not there is skipped.
Each round runs the same sweep in this process on one thread, on one worker of one thread, and on
two, in turn. Starting workers is not timed. Prints medians of the times, and the median of the
ratio of a round's last two with the interval that holds the true one with 95 %.
"""

import argparse
import os
import statistics
import sys
import time
from contextlib import contextmanager

from dimmer import study


def interval(values):
    """The median, and the order statistics around it."""
    values = sorted(values)
    away = 0.98 * len(values) ** 0.5
    low = max(0, int((len(values) - 1) / 2 - away))
    return statistics.median(values), values[low], values[len(values) - 1 - low]


@contextmanager
def dask(workers):
    """Yields what a sweep needs to run on this many workers of Dask."""
    import dask.distributed

    cluster = dask.distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, dashboard_address=None
    )
    with cluster, dask.distributed.Client(cluster) as client:
        yield client


@contextmanager
def ray(workers):
    """The same of Ray, of which a process can have one cluster at a time."""
    import ray

    ray.init(num_cpus=workers, include_dashboard=False, logging_level="error")
    try:
        yield "ray"
    finally:
        ray.shutdown()


def compare(name, engine, tasks, rounds):
    expected = study.sweep(tasks)
    alone, times = [], []
    for _ in range(rounds):
        begin = time.perf_counter()
        for task in tasks:
            task.run()
        alone.append(time.perf_counter() - begin)
        for workers in (1, 2):
            with engine(workers) as client:
                study.sweep(tasks[: 4 * workers], client)  # Workers load the package.
                begin = time.perf_counter()
                results = study.sweep(tasks, client)
                times.append(time.perf_counter() - begin)
                assert results == expected
    ones, twos = times[::2], times[1::2]
    ratio, low, high = interval([one / two for one, two in zip(ones, twos)])
    alone, one, two = (statistics.median(each) for each in (alone, ones, twos))
    print(
        f"{name}: {len(tasks)} tasks, {rounds} rounds: {alone:.2f} s in this process, "
        f"{one:.2f} s on one worker, {two:.2f} s on two, {ratio:.2f} times as fast "
        f"[{low:.2f}, {high:.2f}]",
        flush=True,
    )


def positive(word):
    number = int(word)
    if number < 1:
        raise ValueError
    return number


def main():
    parser = argparse.ArgumentParser(description="Times sweeps on one worker and on two.")
    for name, usual in (("rounds", 11), ("seeds", 10)):
        parser.add_argument(f"--{name}", type=positive, default=usual, help=f"default: {usual}")
    asked = parser.parse_args()
    if (os.cpu_count() or 1) < 2:
        sys.exit("skipped: two workers need two CPUs")
    tasks = study.tasks(
        ["nginx-avx512", "nginx-avx2"],
        policies=["none", "thresholds"],
        models=["i9-7940x"],
        seeds=asked.seeds,
        end_us=2_000_000,
    )
    for name, engine in (("Dask", dask), ("Ray", ray)):
        try:
            compare(name, engine, tasks, asked.rounds)
        except ImportError as missing:
            print(f"skipped: {missing}")


if __name__ == "__main__":
    main()
