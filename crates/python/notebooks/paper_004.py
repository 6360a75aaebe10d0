# %% [markdown]
# # Paper 004, figure 5.9a: migration between clocks against fixed clocks
#
# A Ryzen 5 1600X has one fast core and slow ones. A microbenchmark takes turns between CPU-bound
# code and memory-bound code (pointer chasing, or indirect access). It migrates to a slow core for
# the latter, or it stays on one core at a fixed clock beside a fast one.

# %%
from __future__ import annotations

import os

import dimmer

MEMORY = {"pointer chasing": "phases-chase", "indirect access": "phases-indirect"}
#: Time (s) and power (W): the author's published data, by the clock (MHz), and with migration.
PAPER = {
    "pointer chasing": {
        "migration": (19.45, 8.8),
        3600: (17.12, 9.0),
        3125: (19.09, 9.3),
        2650: (21.12, 8.9),
        2200: (23.21, 8.7),
    },
    "indirect access": {
        "migration": (21.70, 11.9),
        3600: (14.08, 13.1),
        3125: (16.78, 12.4),
        2650: (19.79, 11.7),
        2200: (22.74, 11.2),
    },
}
#: Rounds of the paper, and of the scenarios; all rounds are alike.
ROUNDS, ROUNDS_HERE = 10_000, 200


def model(mhz: int) -> dimmer.Model:
    """The model with this clock of P1, at the voltage on the line between its P-states'."""
    # 3600 MHz at 1200 mV, 2500 MHz at 1000 mV, 833 MHz at 800 mV.
    low, high = ((833, 800), (2500, 1000)) if mhz < 2500 else ((2500, 1000), (3600, 1200))
    mv = low[1] + (high[1] - low[1]) * (mhz - low[0]) / (high[0] - low[0])
    text = dimmer.Model.load("ryzen-1600x").text
    for key, old, new in (("mhz", 2500, mhz), ("mv", 1000, round(mv))):
        before, found, after = text.partition(f"{key} = {{ value = {old},")
        assert found, f"the model has another {key}"
        text = f"{before}{key} = {{ value = {new},{after}"
    return dimmer.Model.load(text)


def point(result: dimmer.Result) -> tuple[float, float]:
    """The time of the paper's rounds (s), and the mean power (W)."""
    joules = sum(package["joules"] for package in result.packages or [])
    seconds = result.end_us / 1e6
    return seconds * ROUNDS / ROUNDS_HERE, joules / seconds


def fixed(scenario: str, mhz: int) -> tuple[float, float]:
    """On a core at a fixed clock: the fast one, or one beside it at P1."""
    of = dimmer.Scenario.load(scenario).replace(mwait_cores=[2])
    if mhz == 3600:
        return point(dimmer.simulate(of))
    beside = of.replace(core_pstates=["P0", "P1", "P2", "P2", "P2", "P2"])
    moved = dimmer.Scenario.read(
        beside.path, beside.text.replace("\ncpu = 0\n", "\ncpu = 1\n"), beside.files
    )
    return point(dimmer.simulate(moved, model(mhz)))


# %%
found = {
    memory: {
        clock: point(dimmer.simulate(scenario, policy="phases"))
        if clock == "migration"
        else fixed(scenario, clock)
        for clock in PAPER[memory]
    }
    for memory, scenario in MEMORY.items()
}

# %%
print("memory-bound code  clock (MHz)      paper            simulated")
for memory, points in found.items():
    for clock, (seconds, watts) in points.items():
        paper_s, paper_w = PAPER[memory][clock]
        print(
            f"{memory:<18} {clock:<10} {paper_s:6.2f} s {paper_w:5.1f} W"
            f"   {seconds:6.2f} s {watts:5.2f} W"
        )

# %%
try:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
except ImportError:
    print("SKIPPED: matplotlib is not installed, so there is no figure")
else:
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for color, memory in zip(("C0", "C1"), MEMORY):
        for points, style, label in (
            (found[memory], dict(color=color, ls="-"), f"{memory}, simulated"),
            (PAPER[memory], dict(color=color, alpha=0.4, ls=":"), f"{memory}, paper 004"),
        ):
            line = [at for clock, at in points.items() if clock != "migration"]
            axes.plot([s for s, _ in line], [w for _, w in line], marker="o", **style, label=label)
            axes.plot(*points["migration"], "^", ms=11, color=color, alpha=style.get("alpha", 1))
    axes.plot([], [], "k^", label="migration")
    axes.plot([], [], "ko", label="fixed clock")
    axes.set_xlabel("time (s)")
    axes.set_ylabel("power above idle (W)")
    axes.set_title("Migration and fixed clocks, Ryzen 5 1600X")
    axes.legend()
    figure.savefig(os.path.join(os.environ.get("DIMMER_FIGURES", "."), "paper_004.png"), dpi=120)
