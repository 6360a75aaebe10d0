"""What a prefix such as `dimmer run --boost --` costs transactions of Berkeley DB.

    python3 berkeley_db.py THREADS TRANSACTIONS ROUNDS PREFIX...

Compiles ../c/berkeley_db.c, whose threads transfer between accounts, and in each round runs it plain
and with the prefix, in turn, for as many transactions in each thread. Both must print the same.
Prints the median seconds of both, of elapsed time and of CPU time. Needs a C compiler and Berkeley
DB's headers (Debian: libdb5.3-dev).

Paper 002, section 5.4, has Berkeley DB among the programs whose sections a boosted core executes.
"""

import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).parent.parent / "c" / "berkeley_db.c"


def run(command):
    """What the command printed, and its seconds: elapsed, and CPU time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    took = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    return (ended.stdout.decode(), ended.returncode), took, cpu


def main():
    if len(sys.argv) < 5:
        sys.exit("expected THREADS TRANSACTIONS ROUNDS PREFIX...")
    rounds, prefix = int(sys.argv[3]), sys.argv[4:]
    with tempfile.TemporaryDirectory() as folder:
        program = str(pathlib.Path(folder) / "berkeley_db")
        subprocess.run(["cc", "-O2", str(SOURCE), "-o", program, "-ldb", "-pthread"], check=True)
        command = [program, *sys.argv[1:3]]
        ways = {"plain": [], "prefix": []}
        for turn in range(rounds):
            for way in list(ways)[:: 1 if turn % 2 else -1]:
                ways[way].append(run((prefix if way == "prefix" else []) + command))
    printed = {one for runs in ways.values() for one, _, _ in runs}
    for output, code in printed:
        print(f"exit status {code}: {output}", end="" if output else "\n")
    for way, runs in ways.items():
        medians = [statistics.median(column) for column in zip(*[run[1:] for run in runs])]
        print(f"{way}: {medians[0]:.3f} s, {medians[1]:.3f} s of CPU time")
    sys.exit("the runs differ" if len(printed) > 1 else 0)


main()
