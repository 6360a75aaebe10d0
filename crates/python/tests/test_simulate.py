"""Runs, comparisons, models and scenarios."""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import dimmer
from dimmer import study

ROOT = Path(__file__).resolve().parents[3]


def test_lists_every_model_and_scenario_of_the_project() -> None:
    for folder, names in (("models", dimmer.models()), ("scenarios", dimmer.scenarios())):
        assert sorted(names) == sorted(file.stem for file in (ROOT / folder).glob("*.toml"))


def test_loads_by_name_path_and_text(regions: str, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(regions)
    for source in (regions, file, str(file)):
        assert dimmer.Scenario.load(source).name == "bursts in regions"
    model = dimmer.Model.load("i9-7940x")
    assert dimmer.Model.load(model.text).name == model.name == "Intel Core i9-7940X"
    assert model.levels[0] == "L0"


def test_a_scenario_is_read_again_where_its_files_are_not(tmp_path: Path) -> None:
    for name in ("nginx-avx512", "nginx-brotli-page"):
        text = (ROOT / "scenarios" / f"{name}.toml").read_text()
        (tmp_path / f"{name}.toml").write_text(text)
    scenario = dimmer.Scenario.load(tmp_path / "nginx-avx512.toml")
    for file in tmp_path.iterdir():
        file.unlink()
    again = pickle.loads(pickle.dumps(scenario))
    ran = [dimmer.simulate(of, end_us=1000) for of in (scenario, again, "nginx-avx512")]
    assert ran[0] == ran[1] == ran[2]
    model = dimmer.Model.load("zen-5")
    assert pickle.loads(pickle.dumps(model)).text == model.text


def test_the_result_is_the_commands_document(regions: str, tmp_path: Path) -> None:
    result = dimmer.simulate(regions, seed=7, policy="trials")
    document = result.to_dict()
    assert document["schema"] == "dimmer/sim/1"
    assert (result.seed, result.loop, result.policy) == (7, "trials", "trials")
    assert result == dimmer.simulate(regions, seed=7, policy="trials")
    assert pickle.loads(pickle.dumps(result)).to_dict() == document
    with pytest.raises(AttributeError, match="expected one of schema, scenario"):
        result.nonsense  # noqa: B018
    command = os.environ.get("DIMMER_COMMAND")
    if not command:
        pytest.skip("DIMMER_COMMAND names no `dimmer` to compare with")
    file = tmp_path / "regions.toml"
    file.write_text(regions)
    arguments = [command, "sim", "run", file, "--seed=7", "--loop=trials", "--json"]
    assert json.loads(subprocess.check_output(arguments)) == document


def test_overrides_are_keys_of_the_scenario(regions: str) -> None:
    result = dimmer.simulate(regions, cores=2, end_us=5000, model="xeon-gold-6130")
    assert (len(result.cores), result.end_us) == (2, 5000.0)
    assert result.model == "Intel Xeon Gold 6130"
    assert dimmer.Scenario.load(regions).end_us == 100_000.0
    assert dimmer.Scenario.load("c-build").replace(hand_over_us=None).name
    with pytest.raises(ValueError, match="for ever, but there is no `end_us`"):
        dimmer.simulate(regions, end_us=None)


def test_a_boolean_of_numpy_is_a_boolean_of_a_scenario(regions: str) -> None:
    numpy = pytest.importorskip("numpy")
    replaced = dimmer.Scenario.load(regions).replace(idle_states=numpy.True_)
    assert "idle_states = true" in replaced.text


def test_none_removes_a_key_from_included_files_too(regions: str, tmp_path: Path) -> None:
    (tmp_path / "regions.toml").write_text(regions.replace("times = 0", "times = 10"))
    head = "".join(regions.splitlines(True)[:5])
    (tmp_path / "more.toml").write_text(f'{head}include = ["regions.toml"]\n')
    scenario = dimmer.Scenario.load(tmp_path / "more.toml")
    assert scenario.end_us == 100_000.0
    without = scenario.replace(end_us=None)
    assert without.end_us is None and without.name == scenario.name
    assert scenario.end_us == 100_000.0
    assert scenario.replace(cores=2, hand_over_us=None).end_us == 100_000.0
    with pytest.raises(ValueError, match="`nodes`: neither .*more.toml nor a file that it incl"):
        scenario.replace(nodes=None)
    with pytest.raises(ValueError, match="`end_us`: neither"):
        without.replace(end_us=None)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda _: dimmer.Model.load("none"), ValueError, "no model or file `none`; models: epyc"),
        (lambda _: dimmer.Scenario.load("none"), ValueError, "scenario or file `none`; scenarios:"),
        (lambda _: dimmer.Scenario.load(3), TypeError, "a name, a path or a TOML text, not int"),
        (lambda _: dimmer.Scenario.load("a = 1\n"), ValueError, "text: line 1: .*`a`"),
        (lambda _: dimmer.Model.load("/dev/null"), ValueError, "expected a regular file"),
        (lambda s: dimmer.simulate(s, policy="best"), ValueError, "`best`, expected one of hardw"),
        (lambda s: dimmer.simulate(s, policy=3), TypeError, "an object with a method `decide`"),
        (lambda s: dimmer.simulate(s, seed=-1), ValueError, "seed is -1, expected 0 to 184467"),
        (lambda s: dimmer.simulate(s, seed="1"), TypeError, "seed"),
        (lambda s: dimmer.simulate(s, cores=0), ValueError, "`cores` is 0, expected 1 to 4096"),
        (lambda s: dimmer.simulate(s, nodes=1), ValueError, "nodes"),
        (lambda s: dimmer.simulate(s, cores=object()), TypeError, "`cores`: expected a number"),
        (lambda s: dimmer.simulate(s, policy="specialise"), ValueError, "muqss"),
        (lambda s: dimmer.compare(s, "trials"), TypeError, "a list of policies"),
        (lambda s: dimmer.compare(s, ["trials"], seeds=0), ValueError, "seeds: expected at least"),
        (lambda s: dimmer.compare(s, []), ValueError, "policies: expected at least one"),
        (lambda s: dimmer.compare(s, ["trials"], seeds=0.5), TypeError, "a list, not float"),
        (lambda s: dimmer.compare(s, ["trials", "user"]), ValueError, "one kind at a time"),
        (lambda s: dimmer.table([1]), TypeError, "expected Result, not int"),
        (lambda s: dimmer.table([], rows="day"), ValueError, "expected one of run, thread, core"),
    ],
)
def test_bad_input_is_refused_by_name(call, error, said, regions: str) -> None:  # noqa: ANN001
    with pytest.raises(error, match=said):
        call(regions)


def test_compares_governors_and_loops_with_intervals(regions: str) -> None:
    loops = dimmer.compare(regions, ["trials", "always"], seeds=3, end_us=20_000)
    assert [way["loop"] for way in loops.loops] == ["none", "trials", "always"]
    assert loops.runs == 3 and len(loops.loops[2]["ratio"]["ci95"]) == 2
    governors = dimmer.compare(regions, ["user"], seeds=[5, 6], end_us=20_000)
    assert [way["governor"] for way in governors.governors] == ["hardware", "user"]


def test_a_table_has_a_row_for_each_run_thread_and_core(regions: str) -> None:
    results = [dimmer.simulate(regions, seed=seed, end_us=10_000) for seed in (1, 2)]
    runs, threads, cores = (dimmer.table(results, rows) for rows in ("run", "thread", "core"))
    assert runs["seed"] == [1, 2] and len(threads["thread"]) == 8 and len(cores["core"]) == 8
    assert runs["instructions"][0] == pytest.approx(sum(threads["instructions"][:4]))
    pandas = pytest.importorskip("pandas")
    assert pandas.DataFrame(runs).shape == (2, len(runs))
    polars = pytest.importorskip("polars")
    assert polars.DataFrame(cores).height == 8
    pyarrow = pytest.importorskip("pyarrow")
    assert pyarrow.table(threads).num_rows == 8


def test_a_table_of_a_sweep_has_its_keys(regions: str) -> None:
    tasks = study.tasks(regions, seeds=2, end_us=5_000)
    results = study.sweep(tasks)
    runs, cores = dimmer.table(results), dimmer.table(results, "core")
    assert next(iter(runs)) == next(iter(cores)) == "key"
    assert runs["key"] == [task.key for task in tasks] and len(cores["key"]) == 8
    assert {"key": runs.pop("key"), **dimmer.table(results.values())} == dimmer.table(results)


@pytest.mark.parametrize("rows", ["run", "thread", "core"])
def test_the_document_has_each_column(rows: str, regions: str) -> None:
    text = (ROOT / "docs/python.md").read_text()
    columns = dimmer.table(study.sweep(study.tasks(regions, end_us=5_000)), rows)
    levels = {f"{level}_us" for level in dimmer.Model.load("i9-7940x").levels}
    assert [name for name in columns if name not in levels and f"`{name}`" not in text] == []


def test_without_threads_a_comparison_fails(regions: str) -> None:
    program = "import sys, dimmer; dimmer.compare(sys.stdin.read(), ['always'], seeds=2)"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        # No address space is large enough for such a stack.
        env={**os.environ, "RUST_MIN_STACK": str(1 << 48)},
        input=regions,
        text=True,
        capture_output=True,
        timeout=600,
    )
    assert ran.returncode == 1
    assert "OSError: no thread of the simulator starts: " in ran.stderr


def test_other_threads_run_meanwhile(regions: str) -> None:
    """The simulation waits for this thread's own policy calls only."""
    ticks, stop = [], threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(1)
            stop.wait(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    dimmer.simulate(regions, end_us=20_000_000)
    stop.set()
    thread.join()
    assert len(ticks) > 2


ENDLESS = """
import sys, dimmer
try:
    print("starts", flush=True)
    {call}
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(7)
"""


@pytest.mark.parametrize(
    "call",
    [
        "dimmer.simulate(sys.stdin.read(), end_us=80_000_000_000, policy='trials')",
        "dimmer.compare(sys.stdin.read(), ['always'], seeds=4, end_us=8_000_000_000)",
    ],
)
def test_ctrl_c_ends_a_long_run(call: str, regions: str) -> None:
    # A thread that sleeps for most of the time has few steps in an hour.
    run = '    { run = "scalar"'
    scenario = regions.replace(run, f"    {{ sleep_us = 2000 }},\n{run}")
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS.format(call=call)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin and process.stdout
    process.stdin.write(scenario)
    process.stdin.close()
    assert process.stdout.readline() == "starts\n"
    time.sleep(0.5)  # For the run to have started; if it has not, the test only shows less.
    process.send_signal(signal.SIGINT)
    try:
        process.wait(600)
    finally:
        process.kill()
    assert process.returncode == 7
    assert process.stdout.read() == "interrupted\n"
