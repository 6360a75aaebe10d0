"""What `dimmer run --boost` costs a program, and what `--counters` adds.

    python3 counters.py ROUNDS [COMMAND...]

Runs the command plain, with `--boost`, and with `--boost --counters`, in a random order in each
round. Without a command, it is ../c/locks.c, which needs a C compiler. Prints the median CPU time of
each, and the medians of the quotients, with their 95 % intervals (bootstrap). The output must be the
same.
"""

import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).parent.parent / "c" / "locks.c"
BOOST = ["dimmer", "run", "--boost"]
WAYS = {"plain": [], "boost": [*BOOST, "--"], "counters": [*BOOST, "--counters", "--"]}


def run(command):
    """What the command printed, with its status, and its seconds of CPU time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    return (ended.stdout, ended.returncode), cpu


def interval(values, times=2000):
    """The median, and the bounds of its 95 % interval."""
    medians = (statistics.median(random.choices(values, k=len(values))) for _ in range(times))
    medians = sorted(medians)
    return statistics.median(values), medians[times // 40], medians[times - times // 40 - 1]


def measure(rounds, command):
    """Prints what each way takes; returns what the runs printed."""
    took = {way: [] for way in WAYS}
    printed = set()
    for _ in range(rounds):
        for way in random.sample(list(WAYS), len(WAYS)):
            output, cpu = run(WAYS[way] + command)
            printed.add(output)
            took[way].append(cpu)
    for way, seconds in took.items():
        print("{}: {:.3f} s [{:.3f}, {:.3f}]".format(way, *interval(seconds)))
    for way, base in (("boost", "plain"), ("counters", "boost")):
        more = [100 * (one / other - 1) for one, other in zip(took[way], took[base])]
        print("{} more than {}: {:+.1f} % [{:.1f}, {:.1f}]".format(way, base, *interval(more)))
    return printed


def main():
    if len(sys.argv) < 2:
        sys.exit("expected ROUNDS [COMMAND...]")
    rounds, command = int(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        if not command:
            command = [str(pathlib.Path(folder) / "locks")]
            subprocess.run(["cc", "-O2", str(SOURCE), "-o", *command, "-pthread"], check=True)
        printed = measure(rounds, command)
    sys.exit("the runs differ" if len(printed) > 1 else 0)


main()
