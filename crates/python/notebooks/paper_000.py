# %% [markdown]
# # Paper 000, figure 5.3: scalar code after wide code
#
# A core runs scalar code, 200 ms of heavy 512-bit code, and then scalar code for 666 µs, which is
# about as long as the processor goes on holding the lowered clock. The figure has the iterations of
# that last phase under three governors of the license level: the hardware's, AVXFREQ in the kernel,
# and the program itself.

# %%
from __future__ import annotations

import os
from random import Random
from statistics import median

import dimmer

GOVERNORS = ["hardware", "avxfreq", "user"]
#: Medians of the paper's 1000 runs (§5.2.2).
PAPER = {"hardware": 299_004.0, "avxfreq": 293_518.5, "user": 323_083.5}
RUNS = 1000
#: How late a phase ends (µs): Linux lets a thread sleep 50 µs longer, and the author's published
#: runs vary by 5.6 µs (standard deviation).
LATE_US, LATE_SD_US = 50.0, 5.6


# %%
def last_phase(governor: str, seed: int) -> float:
    """Instructions of the third phase, the last scalar one."""
    late, scenario = Random(seed), dimmer.Scenario.load("multiphase-worst-case")
    text = scenario.text
    for us in ("2_000_000", "200_000", "666"):
        lasts = float(us) + max(0.0, late.gauss(LATE_US, LATE_SD_US))
        text = text.replace(f"us = {us} }}", f"us = {lasts:.6f} }}")
    result = dimmer.simulate(text, policy=governor, seed=seed)
    return result.threads[0]["phases"][2]["instructions"]


# All governors see the same phases.
done = {
    governor: [last_phase(governor, seed) for seed in range(1, RUNS + 1)] for governor in GOVERNORS
}

# %% [markdown]
# The paper's loop has more instructions than the scenario's, so both are shown over the median
# under the hardware's governor.

# %%
base = median(done["hardware"])
ratios = {governor: [one / base for one in done[governor]] for governor in GOVERNORS}
paper = {governor: PAPER[governor] / PAPER["hardware"] for governor in GOVERNORS}
print("governor   paper     simulated median, least, most")
for governor in GOVERNORS:
    own = ratios[governor]
    print(
        f"{governor:<9} {100 * (paper[governor] - 1):+6.2f} %"
        f"   {100 * (median(own) - 1):+6.2f} %"
        f"  {100 * (min(own) - 1):+6.2f} %  {100 * (max(own) - 1):+6.2f} %"
    )

# %%
try:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
except ImportError:
    print("SKIPPED: matplotlib is not installed, so there is no figure")
else:
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    axes.boxplot([ratios[governor] for governor in GOVERNORS], whis=(1, 99), sym=".")
    places = range(1, len(GOVERNORS) + 1)
    axes.plot(places, [paper[one] for one in GOVERNORS], "D", label="paper 000: median")
    axes.set_xticks(places, GOVERNORS)
    axes.set_ylabel("iterations in 666 µs, over hardware")
    axes.set_title("Scalar code after 512-bit code, i9-7940X")
    axes.legend()
    figure.savefig(os.path.join(os.environ.get("DIMMER_FIGURES", "."), "paper_000.png"), dpi=120)
