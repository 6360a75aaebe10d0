# %% [markdown]
# # Paper 003, figure 5: a web server on specialised cores
#
# nginx on 16 cores of a Xeon Gold 6130 encrypts in 512-bit code, or in neither AVX2 nor AVX-512.
# Under the paper's scheduler, threads run on one of three wide cores from their first 512-bit
# instruction to their next system call.

# %%
from __future__ import annotations

import os
from statistics import median

import dimmer

NARROW, WIDE = "nginx-specialised-sse", "nginx-specialised"
#: How long a page takes, of the measured one. The paper does not say it: `dimmer sim validate` takes
#: it from the CPU time of requests (figure 2).
PAGE = 0.7521
POLICIES = {"none": "MuQSS", "specialise": "specialised", "specialise-learning": "learning"}
#: What 512-bit code costs (§4.1, %).
PAPER = {"none": 6.0, "specialise": 1.7}
SEEDS = (1, 2, 3)
#: Simulated time (µs).
LENGTH = 2_000_000


def with_pages(name: str) -> dimmer.Scenario:
    """The scenario with pages that take PAGE times as long: instructions are cycles."""
    code = 'name = "scalar"\nclass = "scalar"\nper_cycle = '
    scenario = dimmer.Scenario.load(name)

    def scaled(text: str) -> str:
        return text.replace(code + "1.0", f"{code}{1 / PAGE}")

    files = {path: scaled(text) for path, text in scenario.files.items()}
    return dimmer.Scenario.read(scenario.path, scaled(scenario.text), files)


def rate(scenario: str, policy: str, seed: int) -> float:
    """Requests a second."""
    result = dimmer.simulate(with_pages(scenario), policy=policy, seed=seed, end_us=LENGTH)
    return dimmer.table([result])["requests"][0] / (result.end_us / 1e6)


# %%
narrow = [rate(NARROW, "none", seed) for seed in SEEDS]
lost = {
    policy: [100 * (1 - rate(WIDE, policy, seed) / base) for seed, base in zip(SEEDS, narrow)]
    for policy in POLICIES
}

# %% [markdown]
# The simulator keeps half of the loss, of which the paper's prototype removes most: wide cores that
# are never idle run other code at a lower clock (rows R003-04, R003-05 and R003-14 of
# `docs/VALIDATION.md`).

# %%
print("policy               paper   simulated median, least, most (loss of throughput by AVX-512)")
for policy, own in lost.items():
    paper = f"{PAPER[policy]:.1f} %" if policy in PAPER else ""
    print(f"{policy:<20} {paper:>6}   {median(own):.2f} %  {min(own):.2f} %  {max(own):.2f} %")

# %%
try:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
except ImportError:
    print("SKIPPED: matplotlib is not installed, so there is no figure")
else:
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    places = range(len(POLICIES))
    middles = [median(own) for own in lost.values()]
    ranges = [
        [middle - min(own) for middle, own in zip(middles, lost.values())],
        [max(own) - middle for middle, own in zip(middles, lost.values())],
    ]
    axes.bar(places, middles, 0.6, yerr=ranges, capsize=4, label="simulated")
    axes.plot(range(len(PAPER)), list(PAPER.values()), "kD", label="paper 003")
    axes.set_xticks(places, list(POLICIES.values()))
    axes.set_ylabel("throughput lost by 512-bit code (%)")
    axes.set_title("nginx, 16 cores of a Xeon Gold 6130, three of them wide")
    axes.legend()
    figure.savefig(os.path.join(os.environ.get("DIMMER_FIGURES", "."), "paper_003.png"), dpi=120)
