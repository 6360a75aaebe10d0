"""Marked regions of Python programs."""

import os
import subprocess
import sys
import threading

import pytest

import dimmer


def test_a_region_is_counted_by_its_name() -> None:
    for _ in range(1000):
        with dimmer.region("counted") as entered:
            assert entered.name == "counted"
    found = dimmer.region_statistics("counted")
    assert found is not None and found["calls"] > 100 and found["mean_ns"] > 0
    assert dimmer.region_statistics("never entered") is None


def test_exceptions_pass_and_regions_nest() -> None:
    outer = dimmer.region("outer")
    with pytest.raises(KeyError, match="passes"), outer, dimmer.region("inner"), outer:
        raise KeyError("passes")
    with pytest.raises(RuntimeError, match="not in the region"):
        outer.__exit__(None, None, None)


def test_a_region_is_left_by_the_thread_that_entered_it() -> None:
    region, failed = dimmer.region("of one thread"), []

    def leave() -> None:
        try:
            region.__exit__(None, None, None)
        except RuntimeError as error:
            failed.append(str(error))

    with region:
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
    assert failed == ["this thread is not in the region that it leaves"]


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_a_name_is_a_text(name: str) -> None:
    with pytest.raises(ValueError, match="at least one character, without NUL"):
        dimmer.region(name)
    with pytest.raises(TypeError):
        dimmer.region(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("amount", [-1, 1 << 64])
def test_an_amount_has_its_range(amount: int) -> None:
    said = f"amount is {amount}, expected 0 to 18446744073709551615"
    with pytest.raises(ValueError, match=said):
        dimmer.metric(amount)
    dimmer.metric((1 << 64) - 1)


@pytest.mark.parametrize("amount", [1.5, "1", None])
def test_an_amount_is_an_int(amount: object) -> None:
    with pytest.raises(TypeError, match=f"amount: expected an int, not {type(amount).__name__}"):
        dimmer.metric(amount)  # type: ignore[arg-type]


AWAY = """
import gc, sys, threading
import dimmer

cores = dimmer.dedicated_cores()
if not cores:
    print("no core could be dedicated")
    sys.exit(9)

def work(n):
    # Allocates, raises, and lets other threads have the interpreter.
    home = threading.get_native_id()
    total = 0
    for i in range(n):
        with dimmer.region("work"):
            away = threading.get_native_id()
            total += sum(j * j for j in range(50))
            try:
                raise ValueError(i)
            except ValueError as error:
                total += error.args[0]
            if i % 50 == 0:
                gc.collect()
        assert threading.get_native_id() == home
        seen.add(away != home)
    sums.append(total)

seen, sums = set(), []
threads = [threading.Thread(target=work, args=(300,)) for _ in range(3)]
for thread in threads: thread.start()
work(300)
for thread in threads: thread.join()
assert sums == [300 * sum(j * j for j in range(50)) + sum(range(300))] * 4, sums
try:
    with dimmer.region("work"):
        raise LookupError("home again")
except LookupError:
    pass
print("moved", True in seen)
"""


def test_regions_migrate_with_the_interpreters_lock() -> None:
    """Threads that hand over the interpreter's lock on a dedicated core compute the same."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("one CPU: no core can be dedicated")
    surroundings = {**os.environ, "DIMMER_POLICY": "migrate", "DIMMER_CORES": str(cpus[-1])}
    ran = subprocess.run(
        [sys.executable, "-c", AWAY], env=surroundings, text=True, capture_output=True, timeout=120
    )
    if ran.returncode == 9:
        pytest.skip(f"{ran.stdout.strip()}: {ran.stderr.strip()}")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    if ran.stdout == "moved False\n":
        pytest.skip("threads cannot migrate here")
    assert ran.stdout == "moved True\n"
