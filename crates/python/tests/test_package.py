"""The wheel, and the script that builds it."""

import os
import subprocess
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_wheel_has_its_licenses_and_a_readme() -> None:
    wheel = distribution("dimmer")
    files = {file.name: file for file in wheel.files or ()}
    for name in ("LICENSE-APACHE", "LICENSE-MIT"):
        assert files[name].read_text() == (ROOT / name).read_text()
    assert "dimmer.simulate" in (wheel.read_text("METADATA") or "")


def script(*arguments: str, **surroundings: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [ROOT / "ci/python.sh", *arguments],
        env={**os.environ, **surroundings},
        text=True,
        capture_output=True,
        timeout=600,
    )


def test_the_script_refuses_what_it_does_not_know() -> None:
    for arguments in (["wheels"], ["wheel", "tests"]):
        ran = script(*arguments)
        assert ran.returncode == 2
        assert f"`{' '.join(arguments)}`, expected `wheel` or nothing" in ran.stderr


def test_a_wheel_that_cannot_be_built_is_an_error() -> None:
    ran = script("wheel", PYTHON="/nonexistent/python3", CI="")
    assert ran.returncode == 1
    assert "Python is not installed" in ran.stderr
    ran = script(PYTHON="/nonexistent/python3", CI="")
    assert ran.returncode == 0
    assert ran.stdout.startswith("SKIPPED: Python is not installed")
