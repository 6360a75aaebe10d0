# %% [markdown]
# # Paper 001, figure 6.2: a web server with and without the policy server
#
# nginx encrypts with ChaCha20-Poly1305 in 128, 256 or 512-bit code. Under the paper's policy server
# (the loop `thresholds`) encryption moves to a dedicated core when it lowers clocks.
#
# The scheduler is the paper's, MuQSS, and the clocks are those with all 14 cores of the processor
# busy, as in `dimmer sim validate`. The third series is a policy in ten lines of Python: it moves
# what runs at L2, and nothing else.

# %%
from __future__ import annotations

import os
import re
from statistics import median

import dimmer

CODE = {"SSE": "nginx-sse", "AVX2": "nginx-avx2", "AVX-512": "nginx-avx512"}
#: How long a page takes, of the measured one. The paper does not say it: `dimmer sim validate` takes
#: it from the loss without the server.
PAGE = 0.49
SEEDS = (1, 2, 3)
#: Simulated time (µs). The paper measured for minutes, in which its loop also tried other
#: thresholds.
LENGTH = 4_000_000


# %%
class OnlyL2(dimmer.Policy):
    """Moves calls of which a tenth or more runs code of L2."""

    window_ms = 100.0

    def decide(self, group: int, density: list[float]) -> str:
        return "move" if density[1] >= 0.1 else "stay"


def all_busy(model: dimmer.Model) -> dimmer.Model:
    """The model with the clocks of all cores active, however many are."""
    start, *levels = re.split(r"^\[\[level\]\]$", model.text, flags=re.MULTILINE)
    text = start
    for level in levels:
        head, *bins = level.split("[[level.bins]]\n")
        last = re.sub(r"^from_cores = .*\n", "", bins[-1], flags=re.MULTILINE)
        text += f"[[level]]{head}[[level.bins]]\nfrom_cores = 1\n{last}"
    return dimmer.Model.load(text)


def with_pages(name: str) -> dimmer.Scenario:
    """The scenario with pages that take PAGE times as long: instructions are cycles."""
    code = 'name = "scalar"\nclass = "scalar"\nper_cycle = '
    scenario = dimmer.Scenario.load(name)

    def scaled(text: str) -> str:
        return text.replace(code + "1.0", f"{code}{1 / PAGE}")

    files = {path: scaled(text) for path, text in scenario.files.items()}
    return dimmer.Scenario.read(scenario.path, scaled(scenario.text), files)


MODEL = all_busy(dimmer.Model.load("i9-7940x"))
POLICIES = {"none": "none", "thresholds": "thresholds", "OnlyL2": OnlyL2}

# %%
rates: dict[str, dict[str, float]] = {}
moved: dict[str, dict[str, float]] = {}
for name, policy in POLICIES.items():
    for code, scenario in CODE.items():
        runs = [
            dimmer.simulate(
                with_pages(scenario), MODEL, policy=policy, seed=seed, end_us=LENGTH, scheduler="muqss"
            )
            for seed in SEEDS
        ]
        columns = dimmer.table(runs)
        rates.setdefault(name, {})[code] = median(columns["requests"]) / (LENGTH / 1e6)
        calls = sum(columns["calls"])
        moved.setdefault(name, {})[code] = sum(columns["moved"]) / calls if calls else 0.0

# %% [markdown]
# The paper: 512-bit code costs 17 % of the throughput against SSE, and 8.5 % under the policy
# server (§6.3). The length of a page is taken from the former. A server that takes one of eight
# cores brings nothing here (rows R001-11 to R001-16 of `docs/VALIDATION.md`).

# %%
base = rates["none"]["SSE"]
print("policy       " + "".join(f"{code:>22}" for code in CODE))
for name, of in rates.items():
    cells = (f"{of[code]:8.0f}/s, {100 * moved[name][code]:3.0f} % moved" for code in CODE)
    print(f"{name:<13}" + "".join(f"{cell:>22}" for cell in cells))
for name in POLICIES:
    over = 100 * (rates[name]["AVX-512"] / base - 1)
    print(f"{name}: AVX-512 over SSE without a server {over:+.1f} %")

# %%
try:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
except ImportError:
    print("SKIPPED: matplotlib is not installed, so there is no figure")
else:
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    width = 0.8 / len(POLICIES)
    for at, (name, of) in enumerate(rates.items()):
        places = [place + at * width for place in range(len(CODE))]
        axes.bar(places, [of[code] / base for code in CODE], width * 0.95, label=name)
    axes.plot([2, 2 + width], [0.83, 0.915], "kD", label="paper 001: AVX-512, without and with")
    axes.set_xticks([place + width for place in range(len(CODE))], list(CODE))
    axes.set_ylabel("requests a second, over SSE without a server")
    axes.set_ylim(0.6, 1.2)
    axes.set_title("nginx with ChaCha20-Poly1305, 8 cores of an i9-7940X")
    axes.legend(ncols=2)
    figure.savefig(os.path.join(os.environ.get("DIMMER_FIGURES", "."), "paper_001.png"), dpi=120)
