"""Policies written in Python."""

import threading
from typing import Any

import pytest

import dimmer
from dimmer import study


class Wide(dimmer.Policy):
    """Moves calls in which any code is wide."""

    window_ms = 1.0

    def decide(self, group: int, density: "list[float]") -> str:
        return "move" if sum(density) > 0.01 else "stay"


class Trial:
    """Moves each group in every other window; needs no base class."""

    window_ms = 2.0

    def __init__(self) -> None:
        self.moves = False
        self.seen: "list[tuple[float, float | None, int]]" = []

    def decide(self, group: int, density: "list[float]") -> str:
        return "move" if self.moves else "stay"

    def window(self, now_ms: float, change: "float | None", moved: int) -> bool:
        self.moves = not self.moves
        self.seen.append((now_ms, change, moved))
        return True


def calls(result: dimmer.Result) -> "tuple[int, int]":
    """Calls of marked regions, and those that moved."""
    return (
        sum(thread["calls"] for thread in result.threads),
        sum(thread["moved"] for thread in result.threads),
    )


def test_a_policy_moves_what_it_says(regions: str) -> None:
    all_of_them, moved = calls(dimmer.simulate(regions, policy=Wide()))
    assert moved > 0.9 * all_of_them > 0
    assert calls(dimmer.simulate(regions, policy="none")) == (0, 0)
    assert dimmer.simulate(regions, policy=Wide).policy == "Wide"


def test_windows_come_in_simulated_time(regions: str) -> None:
    policy = Trial()
    calls_of, moved = calls(dimmer.simulate(regions, policy=policy))
    assert 0 < moved < calls_of
    times = [now_ms for now_ms, _, _ in policy.seen]
    assert len(times) > 20 and times == sorted(times) and times[-1] <= 100.0
    assert any(change is not None for _, change, _ in policy.seen)
    assert {moved > 0 for _, _, moved in policy.seen} == {True, False}


def test_equal_policies_give_equal_results(regions: str) -> None:
    assert dimmer.simulate(regions, policy=Trial()) == dimmer.simulate(regions, policy=Trial())


def test_each_run_of_a_comparison_has_a_policy_of_its_own(regions: str) -> None:
    policy = Trial()
    compared = dimmer.compare(regions, [Wide, policy, "always"], seeds=2)
    assert [way["loop"] for way in compared.loops] == ["none", "Wide", "Trial", "always"]
    moved = [way["moved"]["median"] for way in compared.loops[1:]]
    assert moved[0] > 0.9 and 0 < moved[1] < 1 and moved[2] > 0.99
    assert policy.seen == []


class Informed(Wide):
    """Counts what it is informed of."""

    settling_ms = 1.0
    counts_moved_calls = True

    def __init__(self) -> None:
        self.told: "set[str]" = set()

    def own(self, group: int, user: int) -> None:
        self.told.add("own")

    def candidate(self, group: int, is_one: bool) -> None:
        self.told.add("candidate")

    def expect(self, group: int, gain: float) -> None:
        self.told.add("expect")

    def spend(self, group: int, longer_ns: float, worked_ns: float) -> None:
        self.told.add("spend")

    def passed(self, windows: int) -> None:
        self.told.add("passed")

    def ends_early(self) -> bool:
        return False


def test_a_policy_is_informed_as_dimmers_own_loops_are(regions: str) -> None:
    policy = Informed()
    dimmer.simulate(regions, policy=policy)
    assert policy.told == {"own", "candidate", "expect", "spend", "passed"}


class Fails(Wide):
    """Raises at its third window."""

    def __init__(self) -> None:
        self.windows = 0

    def window(self, now_ms: float, change: "float | None", moved: int) -> bool:
        self.windows += 1
        if self.windows == 3:
            raise LookupError("the third window")
        return False


def test_an_exception_of_a_policy_ends_the_run(regions: str) -> None:
    policy = Fails()
    with pytest.raises(LookupError, match="the third window"):
        dimmer.simulate(regions, policy=policy)
    assert policy.windows == 3
    with pytest.raises(LookupError, match="the third window"):
        dimmer.compare(regions, [Fails], seeds=2)


@pytest.mark.parametrize(
    ("attributes", "error", "said"),
    [
        (
            {"decide": lambda *_: 3},
            ValueError,
            r'decide\(\) returned 3, expected "move" or "stay"',
        ),
        ({"decide": lambda *_: None}, ValueError, r"decide\(\) returned None"),
        (
            {"window": lambda *_: None},
            ValueError,
            r"window\(\) returned None, expected True or False",
        ),
        ({"ends_early": lambda *_: 1}, ValueError, r"ends_early\(\) returned 1"),
        ({"window": 3}, TypeError, "window: expected a method, not 3"),
        ({"window_ms": 0}, ValueError, "window_ms is 0, expected 1 to 86400000"),
        ({"window_ms": "long"}, TypeError, "window_ms: expected 1 to 86400000, not str"),
        ({"settling_ms": -1}, ValueError, "settling_ms is -1, expected 0 to"),
        ({"negligible": 2}, ValueError, "negligible is 2, expected 0 to 1"),
        ({"skips_first_window": 3}, TypeError, "skips_first_window: expected True or False"),
        ({"skips_first_window": 1}, TypeError, "skips_first_window: expected True or False, not 1"),
        ({"skips_first_window": None}, TypeError, "expected True or False, not None"),
        ({"decide": lambda _: "stay"}, TypeError, "takes 1 positional argument"),
        ({"name": ""}, ValueError, "name is empty, expected a text of at least one character"),
        ({"name": 3}, TypeError, "name: expected a text of at least one character, not int"),
        ({"name": "trials"}, ValueError, "own policy `trials`"),
    ],
)
def test_nonsense_is_refused_by_name(
    attributes: "dict[str, Any]", error: "type[Exception]", said: str, regions: str
) -> None:
    with pytest.raises(error, match=said):
        dimmer.simulate(regions, policy=type("Nonsense", (Wide,), attributes))


def test_a_policy_has_a_name_of_its_own(regions: str) -> None:
    with pytest.raises(ValueError, match="own policy `trials`"):
        dimmer.simulate(regions, policy=type("trials", (Wide,), {}))
    with pytest.raises(NotImplementedError, match="no method `decide`"):
        dimmer.simulate(regions, policy=dimmer.Policy())


class Above(Wide):
    """Has a name with its limit."""

    def __init__(self, least: float) -> None:
        self.least = least
        self.name = f"above {least}"


def test_results_have_the_name_of_a_policy(regions: str) -> None:
    assert dimmer.simulate(regions, policy=Above(0.25), end_us=5_000).policy == "above 0.25"
    compared = dimmer.compare(regions, [Above(0.25), Above(0.75), Wide], seeds=1, end_us=5_000)
    assert [way["loop"] for way in compared.loops] == ["none", "above 0.25", "above 0.75", "Wide"]


def test_a_comparison_has_each_name_once(regions: str) -> None:
    pairs: "list[list[Any]]" = [[Wide, Wide()], [Wide, Wide]]
    for policies in pairs:
        with pytest.raises(ValueError, match="two are named `Wide`; give each an attribute `name`"):
            dimmer.compare(regions, policies, seeds=1)
    loops = dimmer.compare(regions, ["always", "none", "always"], seeds=1, end_us=5_000)
    assert [way["loop"] for way in loops.loops] == ["none", "always"]
    governors = dimmer.compare(regions, [None, "user", "user"], seeds=1, end_us=5_000)
    assert [way["governor"] for way in governors.governors] == ["hardware", "user"]


class Locked(Wide):
    """Has an object that cannot be copied."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_each_run_of_a_comparison_has_an_object_that_its_class_makes(regions: str) -> None:
    compared = dimmer.compare(regions, [Locked], seeds=2, end_us=5_000)
    assert [way["loop"] for way in compared.loops] == ["none", "Locked"]
    with pytest.raises(TypeError, match="policy Locked: its object cannot be copied") as refused:
        dimmer.compare(regions, [Locked()], seeds=2, end_us=5_000)
    assert "cannot pickle" in str(refused.value.__cause__)


def test_booleans_of_numpy_are_accepted(regions: str) -> None:
    numpy = pytest.importorskip("numpy")

    class Numpy(Trial):
        skips_first_window = numpy.False_

        def window(self, now_ms: float, change: "float | None", moved: int) -> bool:
            return bool(super().window(now_ms, change, moved)) and numpy.True_

    class Plain(Trial):
        name = "Numpy"
        skips_first_window = False

    assert dimmer.simulate(regions, policy=Numpy) == dimmer.simulate(regions, policy=Plain)


def test_tasks_with_policies_have_keys_by_content(regions: str) -> None:
    named = study.tasks(regions, ["none", "always", Wide, Trial], seeds=2)
    assert len({task.key for task in named}) == 8
    assert [task.key for task in study.tasks(regions, [Wide, Wide()])][0] == named[4].key
    unknown = type("Made", (), {"decide": lambda *_: "stay"})
    with pytest.raises(ValueError, match="needs an attribute `key`"):
        study.tasks(regions, [unknown])
    assert study.tasks(regions, [type("Made", (unknown,), {"key": "stays"})])
