"""Fixtures of all tests."""

import pytest

#: A short scenario with marked regions, of which moving some pays.
REGIONS = """
schema = "dimmer/scenario/1"
name = "bursts in regions"
source = "made up for this test"
model = "i9-7940x"
cores = 4
end_us = 100_000
hand_over_us = 1.0

[[code]]
name = "scalar"
class = "scalar"
per_cycle = 1.5

[[code]]
name = "burst"
class = "heavy-512"
per_cycle = 2.0

[[thread]]
name = "server"
count = 4
times = 0
steps = [
    { run = "scalar", us = 40 },
    { enter = "burst" },
    { run = "burst", instructions = 2_000 },
    { leave = "burst" },
]
"""


@pytest.fixture
def regions() -> str:
    """The text of a scenario with marked regions."""
    return REGIONS
