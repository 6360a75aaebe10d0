"""The native part of the package; ``dimmer`` documents what users call."""

import os
from typing import Any, Optional, Sequence, Union, final

__all__ = [
    "Model",
    "Scenario",
    "models",
    "scenarios",
    "policies",
    "copied",
    "Region",
    "dedicated_cores",
    "metric",
    "region_statistics",
    "compare",
    "simulate",
]

@final
class Model:
    """A processor model."""

    @staticmethod
    def load(source: Union[str, "os.PathLike[str]"]) -> Model:
        """Reads a model: the name of one that comes with Dimmer, a file, or a TOML text."""
    @staticmethod
    def read(path: str, text: str) -> Model: ...
    @property
    def name(self) -> str: ...
    @property
    def microarchitecture(self) -> str: ...
    @property
    def levels(self) -> list[str]: ...
    @property
    def path(self) -> str: ...
    @property
    def text(self) -> str: ...

@final
class Scenario:
    """A workload."""

    @staticmethod
    def load(source: Union[str, "os.PathLike[str]"]) -> Scenario:
        """Reads a scenario: the name of one that comes with Dimmer, a file, or a TOML text."""
    @staticmethod
    def read(path: str, text: str, files: dict[str, str]) -> Scenario: ...
    def replace(self, **keys: Any) -> Scenario:
        """The same with other values of keys at the top, such as ``cores``.

        None removes a key, also from the files that it includes; one of them must have it.
        """
    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def end_us(self) -> Optional[float]: ...
    @property
    def path(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def files(self) -> dict[str, str]: ...

@final
class Region:
    """A region: ``with`` enters and leaves it."""

    def __new__(cls, name: str, file: str, line: int) -> Region: ...
    def __enter__(self) -> Region: ...
    def __exit__(self, *exception: object) -> None: ...
    @property
    def name(self) -> str: ...

def models() -> list[str]:
    """The names of the models that come with Dimmer."""

def scenarios() -> list[str]:
    """The names of the scenarios that come with Dimmer."""

def policies() -> list[str]:
    """The names of the policies: governors of license levels, then what moves code."""

def copied(object: Any) -> Any: ...
def simulate(scenario: Scenario, model: Model, policy: Any, seed: int) -> str: ...
def compare(scenario: Scenario, model: Model, policies: Sequence[Any], seeds: list[int]) -> str: ...
def region_statistics(name: str) -> Optional[tuple[int, Optional[float]]]: ...
def dedicated_cores() -> int:
    """The number of CPUs that are dedicated to regions."""

def metric(amount: int) -> None:
    """Reports how much more the program got done, in a unit of its own."""
