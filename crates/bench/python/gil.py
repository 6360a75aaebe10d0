"""Threads that compete for the lock of the Python interpreter (GIL).

    python3 gil.py TASK THREADS ITERATIONS

Each thread does as many iterations of the task, and one line on standard output has what they
computed, the same in every run. How long an iteration took on standard error, in microseconds.

The tasks are those of paper 002, section 5.1: `pi` and `regex` keep the lock all the time, `bz2` and
`sha1` release it while code in C works.
"""

import bz2
import hashlib
import re
import sys
import threading
import time

# 64 kB of words that repeat, so that both compression and the regular expression have work.
WORDS = ["lock", "clock", "turbo", "core", "thread", "section", "wait", "hold"]
TEXT = " ".join(WORDS[(i * i + 3 * i) % 8] + str(i % 97) for i in range(9000))[:65536]
BYTES = TEXT.encode()
PATTERN = re.compile(r"(?:[a-z]+o[a-z]*)(\d+) \w+?(\d)\b")


def pi():
    """The first 300 digits of pi, by the series of Gibbons, in whole numbers."""
    digits = []
    q, r, t, k, n, l = 1, 0, 1, 1, 3, 3
    while len(digits) < 300:
        if 4 * q + r - t < n * t:
            digits.append(n)
            q, r, n = 10 * q, 10 * (r - n * t), 10 * (3 * q + r) // t - 10 * n
        else:
            q, r, t, k, n, l = (
                q * k,
                (2 * q + r) * l,
                t * l,
                k + 1,
                (q * (7 * k + 2) + r * l) // (t * l),
                l + 2,
            )
    return "".join(map(str, digits))


def regex():
    """All matches in the text."""
    return str(sum(int(a) + int(b) for a, b in PATTERN.findall(TEXT)))


def bz2_task():
    """The compressed text."""
    return hashlib.sha1(bz2.compress(BYTES)).hexdigest()


def sha1():
    """The digest of four times the text."""
    digest = hashlib.sha1(BYTES)
    for _ in range(3):
        digest.update(BYTES)
    return digest.hexdigest()


TASKS = {"pi": pi, "regex": regex, "bz2": bz2_task, "sha1": sha1}


def work(task, iterations, results, number):
    result = ""
    for _ in range(iterations):
        result = task()
    results[number] = result


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in TASKS:
        sys.exit(f"expected TASK THREADS ITERATIONS, and a task of {', '.join(TASKS)}")
    task, threads, iterations = TASKS[sys.argv[1]], int(sys.argv[2]), int(sys.argv[3])
    results = [""] * threads
    begin = time.perf_counter()
    workers = [
        threading.Thread(target=work, args=(task, iterations, results, number))
        for number in range(threads)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took = time.perf_counter() - begin
    print(sys.argv[1], threads, iterations, *results)
    print(f"{took / iterations * 1e6:.0f} us for an iteration of each thread", file=sys.stderr)


main()
