"""Notebooks: each runs, draws its figure, and finds what `dimmer sim validate` finds."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NOTEBOOKS = sorted((ROOT / "crates/python/notebooks").glob("paper_*.py"))


def validated(row: str) -> "list[float]":
    """The numbers of the simulator's column of a row of docs/VALIDATION.md."""
    for line in (ROOT / "docs/VALIDATION.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split(" | ")]
        if cells[0] == f"| {row}":
            without_ranges = re.sub(r"\[.*?\]", "", cells[5])
            return [float(found) for found in re.findall(r"-?\d+(?:\.\d+)?", without_ranges)]
    raise AssertionError(f"docs/VALIDATION.md has no row {row}")


def hardware(row: str) -> "list[float]":
    """From which section on boosts gain, of a row of docs/break-even.md (1000 cycles)."""
    for line in (ROOT / "docs/break-even.md").read_text().splitlines():
        if line.startswith(f"| {row} |"):
            return [float(found) for found in re.findall(r"(\d+) 000 cycles", line)]
    raise AssertionError(f"docs/break-even.md has no row {row}")


def number(printed: str, pattern: str) -> float:
    found = re.search(pattern, printed)
    assert found, f"no {pattern!r} in:\n{printed}"
    return float(found.group(1))


def check(name: str, printed: str) -> None:
    """Compares what is printed with the rows of the same experiments; digits are rounded."""
    if name == "paper_000":
        avxfreq, user = validated("R000-42")
        of = r"\n{} +\S+ % +(\S+) %"
        assert number(printed, of.format("avxfreq")) == pytest.approx(avxfreq, abs=0.2)
        assert number(printed, of.format("user")) == pytest.approx(user, abs=0.5)
    elif name == "paper_001":
        loss = -number(printed, r"none: AVX-512 over SSE without a server (\S+) %")
        assert loss == pytest.approx(validated("R001-11")[0], abs=0.2)
        assert [number(printed, r"thresholds +\d+/s, +(\d+) % moved")] == validated("R001-13")
    elif name == "paper_002":
        rows = {"ownr": "requests without privilege", "dlgt": "or another core makes the request"}
        for strategy, row in rows.items():
            found = number(printed, rf"\n{strategy}: faster than `one` from (\d+) kcycles")
            assert found in [pytest.approx(kcycles, rel=0.02) for kcycles in hardware(row)]
    elif name == "paper_003":
        for policy, row in (("none", "R003-04"), ("specialise", "R003-05")):
            found = number(printed, rf"\n{policy} +\S+ % +(\S+) %")
            assert found == pytest.approx(validated(row)[0], abs=0.3)
    else:
        for clock, row in (("migration", "R004-30"), ("3125", "R004-32"), ("2200", "R004-34")):
            indirect = number(printed, rf"indirect access +{clock} +\S+ s +\S+ W +(\S+) s")
            chase = number(printed, rf"pointer chasing +{clock} +\S+ s +\S+ W +(\S+) s")
            assert [indirect, chase] == pytest.approx(validated(row)[-2:], rel=0.01)


def test_each_paper_has_a_notebook() -> None:
    assert [file.stem for file in NOTEBOOKS] == [f"paper_00{number}" for number in range(5)]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs_and_draws(file: Path, tmp_path: Path) -> None:
    surroundings = {**os.environ, "DIMMER_FIGURES": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-W", "error", file],
        env=surroundings,
        text=True,
        capture_output=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    check(file.stem, ran.stdout)
    if "SKIPPED: matplotlib" in ran.stdout:
        pytest.skip("matplotlib is not installed, so there is no figure")
    figure = (tmp_path / f"{file.stem}.png").read_bytes()
    assert figure.startswith(b"\x89PNG") and len(figure) > 5000
