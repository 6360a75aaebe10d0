"""Keys of tasks: different for policies that behave differently, equal for equal ones."""

import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

import pytest

import dimmer
from dimmer import study


class Plain(dimmer.Policy):
    """Has attributes of the class and of the object."""

    least = 0.5

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def decide(self, group: int, density: "list[float]") -> str:
        return "move" if max(density) > self.least else "stay"


class Slots:
    """Has no `__dict__`."""

    __slots__ = ("least",)

    def __init__(self, least: float) -> None:
        self.least = least

    def decide(self, group: int, density: "list[float]") -> str:
        return "move" if max(density) > self.least else "stay"


class Table(dict):  # type: ignore[type-arg]
    """Is a table of decisions itself."""

    def decide(self, group: int, density: "list[float]") -> str:
        return str(self.get(group, "stay"))


@dataclass
class Data:
    """A dataclass, whose methods have no source."""

    least: float = 0.5
    groups: "list[int]" = field(default_factory=list)

    def decide(self, group: int, density: "list[float]") -> str:
        return "move" if max(density) > self.least else "stay"


def key(policy: Any, regions: str) -> str:
    (task,) = study.tasks(regions, [policy])
    return task.key


def by_closure(least: Any) -> type:
    class Closure(dimmer.Policy):
        def decide(self, group: int, density: "list[float]") -> str:
            return "move" if max(density) > least else "stay"

    return Closure


def by_static_closure(least: Any) -> type:
    class Closure(dimmer.Policy):
        @staticmethod
        def limit() -> float:
            return least

        def decide(self, group: int, density: "list[float]") -> str:
            return "move" if max(density) > self.limit() else "stay"

    return Closure


def by_property(least: Any) -> type:
    class Closure(dimmer.Policy):
        @property
        def limit(self) -> float:
            return least

        def decide(self, group: int, density: "list[float]") -> str:
            return "move" if max(density) > self.limit else "stay"

    return Closure


def by_default(least: Any) -> type:
    class Default(dimmer.Policy):
        def decide(self, group: int, density: "list[float]", least: float = least) -> str:
            return "move" if max(density) > least else "stay"

    return Default


def by_attribute(least: Any) -> type:
    class Attribute(Plain):
        pass

    Attribute.least = least
    return Attribute


def by_method(least: Any) -> type:
    class Method(Plain):
        decide = (lambda *_: "move") if least > 0.5 else (lambda *_: "stay")  # type: ignore

    return Method


def by_factory_of_a_field(least: Any) -> type:
    @dataclass
    class Made:
        limits: "list[float]" = field(default_factory=lambda: [least])

        def decide(self, group: int, density: "list[float]") -> str:
            return "move" if max(density) > self.limits[0] else "stay"

    return Made


def by_name(least: Any) -> type:
    return type("Named", (Plain,), {"key": "one", "name": f"above {least}"})


@pytest.mark.parametrize(
    "make",
    [
        by_closure,
        by_static_closure,
        by_property,
        by_default,
        by_attribute,
        by_method,
        by_factory_of_a_field,
        by_name,
        Slots,
        Data,
        Plain,
        lambda least: Plain({"least": [least]}),
        lambda least: Table({3: least}),
    ],
)
def test_what_a_policy_depends_on_is_in_its_key(make: Callable[[float], Any], regions: str) -> None:
    assert key(make(0.25), regions) != key(make(0.75), regions)
    assert key(make(0.25), regions) == key(make(0.25), regions)


def test_types_and_structures_differ(regions: str) -> None:
    values: "list[Any]" = [None, False, 0, 0.0, "0", b"0", [], (), {}, set(), frozenset(), [[]]]
    values += [{"a": 1}, {"a": True}, {1: "a"}, {1, 2}, (1, 2), [1, 2], ["dict"], ["tuple"]]
    assert len({key(Plain(value), regions) for value in values}) == len(values)


def test_numpy_arrays_count_by_all_their_values(regions: str) -> None:
    numpy = pytest.importorskip("numpy")
    long = numpy.arange(5000.0)
    other = long.copy()
    other[2500] = 0
    values = [long, other, long.reshape(50, 100), long.astype("f4"), numpy.float64(1), 1.0]
    assert len({key(Plain(value), regions) for value in values}) == len(values)
    assert key(Plain(long), regions) == key(Plain(long[::-1][::-1]), regions)
    with pytest.raises(ValueError, match="`state` has a value of type ndarray"):
        key(Plain(numpy.array([object()])), regions)


ELSEWHERE = """
import sys
sys.path.insert(0, sys.argv[1])
import test_key
print(test_key.key(test_key.Plain({"wide", "narrow", "scalar"}), sys.stdin.read()))
"""


def test_sets_have_one_key_in_each_process(regions: str) -> None:
    expected = key(Plain({"scalar", "narrow", "wide"}), regions)
    for seed in "123":
        found = subprocess.check_output(
            [sys.executable, "-c", ELSEWHERE, Path(__file__).parent],
            env={**os.environ, "PYTHONHASHSEED": seed},
            input=regions,
            text=True,
        )
        assert found.strip() == expected


def test_a_run_leaves_the_key_as_it_is(regions: str) -> None:
    before = study.tasks(regions, [Plain, Plain()], seeds=2)
    study.sweep(before)
    assert study.tasks(regions, [Plain, Plain()], seeds=2) == before


def test_a_task_has_a_copy_of_its_policy(regions: str) -> None:
    policy = Plain([1])
    (task,) = study.tasks(regions, [policy])
    policy.state.append(2)
    assert isinstance(task.policy, Plain) and task.policy.state == [1]
    assert key(policy, regions) != task.key


class Locked(Plain):
    """Cannot be copied."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


def cyclic() -> "list[Any]":
    found: "list[Any]" = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("policy", "error", "said"),
    [
        (Plain(object()), ValueError, "Plain: `state` has a value of type object, .* needs an"),
        (Plain([Slots(1)]), ValueError, "`state` has a value of type Slots"),
        (Plain(cyclic()), ValueError, "`state` contains itself"),
        (by_closure(object()), ValueError, "`decide, variable least` has a value of type object"),
        (by_default(object()), ValueError, "`decide, defaults` has a value of type object"),
        (by_attribute(object()), ValueError, "`least` has a value of type object"),
        (type("Number", (Plain,), {"key": 3}), TypeError, "Number: key: expected a text, not int"),
        (Locked(), TypeError, "policy Locked: its object cannot be copied"),
    ],
)
def test_what_has_no_key_is_refused_by_name(
    policy: Any, error: "type[Exception]", said: str, regions: str
) -> None:
    with pytest.raises(error, match=said):
        study.tasks(regions, [policy])
