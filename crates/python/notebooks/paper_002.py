# %% [markdown]
# # Paper 002, figure 5: P-states that threads request at a lock
#
# On an AMD FX-8120, threads spend all their time in sections under one lock. The figure has the
# effective clock of these sections by their length, under strategies that request P-states:
#
# * `one`: a single thread at the base (P2), the others executing at P6;
# * `ownr`: threads wait at P6, and the owner requests P0 for its section;
# * `wait`: threads start at P0, and request P6 while they wait;
# * `dlgt`: as `ownr` with one thread a module, whose neighbour core makes the requests;
# * `mgrt`: threads at P6 migrate to a module at P0 for their section.

# %%
from __future__ import annotations

import os

import dimmer

HEAD = """
schema = "dimmer/scenario/1"
name = "Sections under one lock, {name}"
source = "paper 002 §4.3, figure 5"
model = "fx-8120"
cores = 8
core_pstates = [{pstates}]
end_us = {end_us}

[[code]]
name = "section"
class = "scalar"
per_cycle = 1.0

[[code]]
name = "other"
class = "scalar"
per_cycle = 1.0
"""

THREAD = """
[[thread]]
name = "thread"
cpu = {cpu}
times = 0
steps = [{steps}]
"""

TAKE, GIVE = '{ lock = 0, wait = "spin" }', "{ unlock = 0 }"
# The change from P0 to P6 was not measured in one step, so it goes by the base.
FAST, SLOW = '{ pstate = "P0" }', '{ pstate = "P2" }, { pstate = "P6" }'


def steps(strategy: str, cpu: int, section: int) -> str | None:
    """What a CPU's thread repeats; None: the CPU has none."""
    run = f'{{ run = "section", instructions = {section} }}'
    other = '{ run = "other", us = 1_000_000 }'
    if strategy == "one":
        return ", ".join([TAKE, run, GIVE]) if cpu == 0 else other
    if strategy == "ownr":
        return ", ".join([TAKE, FAST, run, GIVE, SLOW])
    if strategy == "wait":
        return ", ".join([SLOW, TAKE, FAST, run, GIVE])
    if strategy == "dlgt":
        if cpu % 2:
            return other
        near = f", core = {cpu + 1} }}"
        fast, slow = FAST.replace(" }", near), SLOW.replace(" }", near)
        return ", ".join([TAKE, fast, run, GIVE, slow])
    if cpu >= 6:
        return None
    return ", ".join([TAKE, "{ migrate = 6 }", run, GIVE, f"{{ migrate = {cpu} }}"])


#: The P-states at the start.
PSTATES = {
    "one": ["P2"] + 7 * ["P6"],
    "ownr": 8 * ["P6"],
    "wait": 8 * ["P0"],
    "dlgt": 8 * ["P6"],
    "mgrt": 6 * ["P6"] + 2 * ["P0"],
}
#: From which section on the paper's strategies are faster than `one` (kilocycles, §4.3).
PAPER = {"ownr": 600, "wait": 600, "dlgt": 200, "mgrt": 400}
SECTIONS = [10_000 * 2**step for step in range(11)]


def clock(strategy: str, section: int) -> float:
    """The effective clock of sections (GHz): their cycles over the time."""
    # Each thread has at least some twenty sections.
    end_us = 20 * 8 * (section / 1000 + 200)
    pstates = ", ".join(f'"{name}"' for name in PSTATES[strategy])
    text = HEAD.format(name=strategy, pstates=pstates, end_us=end_us)
    for cpu in range(8):
        own = steps(strategy, cpu, section)
        if own is not None:
            text += THREAD.format(cpu=cpu, steps=own)
    result = dimmer.simulate(text)
    cycles = sum(
        phase["instructions"]
        for thread in result.threads
        for phase in thread["phases"]
        if phase["code"] == "section"
    )
    return cycles / (1000 * result.end_us)


# %%
clocks = {strategy: [clock(strategy, one) for one in SECTIONS] for strategy in PSTATES}


def crossing(strategy: str) -> float:
    """The shortest section with which a strategy is faster than `one`, by halving (kilocycles)."""
    low, high = 10_000, 1_000_000
    while high > 1.005 * low:
        middle = int((low * high) ** 0.5)
        if clock(strategy, middle) > clock("one", middle):
            high = middle
        else:
            low = middle
    return high / 1000


# %% [markdown]
# Here the way to P0 takes as long as in the paper's table 4, and cycles are executed ones, as in
# `docs/break-even.md` (on other hardware). Rows R002-07 to R002-09 of `docs/VALIDATION.md` count
# those of the time-stamp counter, take that way from `dlgt`, and have what is known of the causes.

# %%
print("section (kcycles)  " + "".join(f"{strategy:>8}" for strategy in clocks))
for at, section in enumerate(SECTIONS):
    print(
        f"{section / 1000:<19g}" + "".join(f"{own[at]:8.3f}" for own in clocks.values()) + "  GHz"
    )
crossings = {strategy: crossing(strategy) for strategy in PAPER}
for strategy, paper in PAPER.items():
    print(f"{strategy}: faster than `one` from {crossings[strategy]:.0f} kcycles; paper {paper}")

# %%
try:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
except ImportError:
    print("SKIPPED: matplotlib is not installed, so there is no figure")
else:
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for strategy, own in clocks.items():
        # `ownr` and `wait` are as fast here.
        style = ".--" if strategy == "wait" else ".-"
        (line,) = axes.plot([one / 1000 for one in SECTIONS], own, style, label=strategy)
        if strategy in PAPER:
            axes.plot(PAPER[strategy], clocks["one"][-1], "D", color=line.get_color(), alpha=0.7)
    axes.plot([], [], "kD", label="paper 002: crossing")
    axes.set_xscale("log")
    axes.set_xlabel("cycles of a section (thousands)")
    axes.set_ylabel("effective clock of sections (GHz)")
    axes.set_title("P-states requested at a lock, FX-8120")
    axes.legend()
    figure.savefig(os.path.join(os.environ.get("DIMMER_FIGURES", "."), "paper_002.png"), dpi=120)
