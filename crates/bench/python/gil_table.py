"""How long the threads of gil.py wait for the interpreter's lock, hold it, and are outside of it.

    python3 gil_table.py ROUNDS [DIMMER]

The columns of paper 002, table 6, in microseconds for an iteration of each thread, by
`dimmer run --boost --section take_gil..drop_gil --section drop_gil`: the median of ROUNDS, with the
least and the greatest. From runs of many iterations, those of few (their median) are subtracted:
what is left has neither the start of Python nor its end in it. The main thread waits outside of the
lock for the others; that time is subtracted, by gil.py's own clock. `drop` is the time in the
function that releases the lock, which is neither in `hold` nor in `native`: it ends when another
thread has the lock, if one waits for it.

Then, for two threads, the CPU time of runs in turn: plain, with `--boost`, and with `--section`.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile

ITERATIONS = {"pi": (20, 220), "regex": (50, 650), "bz2": (10, 310), "sha1": (500, 8500)}
THREADS = (1, 2, 4)
SECTION = "take_gil..drop_gil"
OBSERVED = ["run", "--boost"]
WATCHED = [*OBSERVED, "--section", SECTION, "--section", "drop_gil"]
GIL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gil.py")


def times(dimmer, task, threads, iterations):
    """Nanoseconds of all threads: waiting, holding, outside without the main thread's, dropping."""
    with tempfile.NamedTemporaryFile() as file:
        program = [sys.executable, GIL, task, str(threads), str(iterations)]
        command = [dimmer, *WATCHED, f"--json={file.name}", "--", *program]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            sys.exit(run.stderr)
        sites = json.load(file)["sites"]
    [site] = [site for site in sites if site["function"] == SECTION]
    [drop] = [site for site in sites if site["kind"] == "function"]
    elapsed = float(run.stderr.split(" ", 1)[0]) * 1000 * iterations
    outside = site["outside_ns"] - elapsed - drop["held_ns"]
    return site["waited_ns"], site["held_ns"], outside, drop["held_ns"]


def of_iterations(dimmer, task, threads, rounds):
    """Microseconds of an iteration in each round, for each column of `times`."""
    few, many = ITERATIONS[task]
    all_rounds = [
        [times(dimmer, task, threads, count) for count in (few, many)] for _ in range(rounds)
    ]
    before, after = (list(zip(*runs)) for runs in zip(*all_rounds))
    number = threads * (many - few) * 1000
    return [
        [(value - statistics.median(start)) / number for value in column]
        for start, column in zip(before, after)
    ]


def cpu_time(prefix, task):
    """Seconds on CPUs of a run with two threads, with what observes it."""
    program = [sys.executable, GIL, task, "2", str(ITERATIONS[task][1])]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*prefix, *program], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def shown(values, digits=0):
    middle = statistics.median(values)
    return f"{middle:.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def main():
    if len(sys.argv) not in (2, 3) or not sys.argv[1].isdigit() or int(sys.argv[1]) < 1:
        sys.exit("expected ROUNDS, at least 1, and the path of dimmer, if it is not in PATH")
    rounds = int(sys.argv[1])
    dimmer = sys.argv[2] if len(sys.argv) > 2 else "dimmer"
    print("task   threads  wait, hold, native, drop (us)")
    for task in ITERATIONS:
        for threads in THREADS:
            columns = [shown(column) for column in of_iterations(dimmer, task, threads, rounds)]
            print(f"{task:6} {threads:7}  {'  '.join(columns)}", flush=True)
    print("task   CPU time (s): plain, --boost, --section")
    prefixes = [[], [dimmer, *OBSERVED, "--"], [dimmer, *WATCHED, "--"]]
    for task in ITERATIONS:
        turns = [[cpu_time(prefix, task) for prefix in prefixes] for _ in range(rounds)]
        print(f"{task:6} {'  '.join(shown(way, 2) for way in zip(*turns))}", flush=True)


main()
