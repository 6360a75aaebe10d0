"""The programs of docs/python.md run, and print what stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).resolve().parents[3] / "docs/python.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
PRINTED = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)


def run(program: str, tmp_path: Path) -> str:
    file = tmp_path / "program.py"
    file.write_text(program)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("DIMMER_")}
    ran = subprocess.run(
        [sys.executable, file],
        env=plain,
        text=True,
        capture_output=True,
        timeout=600,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def only(word: str) -> str:
    """The one program with this word."""
    (program,) = [program for program in PROGRAMS if word in program]
    return program


def test_a_run(tmp_path: Path) -> None:
    assert run(only("seed=7"), tmp_path).startswith("2000000.0 ")


def test_the_policy_in_ten_lines_prints_what_stands_there(tmp_path: Path) -> None:
    assert run(only("class Wide"), tmp_path) in PRINTED


def test_the_sweep_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    program = only("LocalCluster").replace("end_us=2_000_000", "end_us=200_000")
    assert run(program, tmp_path) == "80 tasks, 80 results\n"
    assert "`80 tasks, 80 results`" in TEXT


def test_the_region(tmp_path: Path) -> None:
    assert run(only("dimmer.region("), tmp_path).startswith("0 {False} {'calls': ")
