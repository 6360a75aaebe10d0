"""What a prefix such as `dimmer run --boost --` costs memcached under a load of sets.

    python3 memcached_sets.py ITEMS ROUNDS PREFIX...

Each round starts memcached plain and with the prefix, in turn, and stores as many items with
distinct keys by two connections. Its hash table begins at 2^13 places, so it is resized several
times meanwhile. Both must hold the same items afterwards, and have as large a table. Prints the
median seconds of both for all sets, of elapsed time and of CPU time, and what differed.

Paper 002, section 5.3, has such a load, by mc-crusher.
"""

import os
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time

CONNECTIONS = 2
# Sets that are sent at once, without waiting for answers.
BATCH = 500
VALUE = b"v" * 64


def connect(port, process):
    for _ in range(1000):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            if process.poll() is not None:
                sys.exit(f"memcached ended with {process.returncode}")
            time.sleep(0.01)
    sys.exit("memcached takes no connections")


def store(connection, first, last):
    for begin in range(first, last, BATCH):
        keys = range(begin, min(begin + BATCH, last))
        head = b" 0 0 %d noreply\r\n%b\r\n" % (len(VALUE), VALUE)
        connection.sendall(b"".join(b"set key%d" % key + head for key in keys))
    # Answered after all of them.
    connection.sendall(b"version\r\n")
    answer = connection.makefile("rb").readline()
    assert answer.startswith(b"VERSION"), answer


def statistics_of(connection):
    connection.sendall(b"stats\r\n")
    found = {}
    for line in connection.makefile("rb"):
        if line == b"END\r\n":
            return found
        _, name, value = line.decode().split(None, 2)
        found[name] = value.strip()


def run(prefix, items):
    """What memcached holds at the end, and the seconds: elapsed, and CPU time."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["memcached", "-A", "-l", "127.0.0.1", "-p", str(port), "-t", "4", "-m", "1024"]
    command += ["-o", "hashpower=13"] + (["-u", "root"] if os.getuid() == 0 else [])
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(prefix + command, stdout=subprocess.DEVNULL)
    share = items // CONNECTIONS
    connections = [connect(port, process) for _ in range(CONNECTIONS)]
    begin = time.perf_counter()
    threads = [
        threading.Thread(target=store, args=(one, number * share, (number + 1) * share))
        for number, one in enumerate(connections)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - begin
    asked = connections[0]
    # The table grows by one power at a time, until it has more than two places for three items.
    found = statistics_of(asked)
    while found["hash_is_expanding"] != "0" or 3 << int(found["hash_power_level"]) < 2 * items:
        time.sleep(0.01)
        found = statistics_of(asked)
    asked.sendall(b"get key0 key%d\r\n" % (share * CONNECTIONS - 1))
    answer = asked.makefile("rb")
    values = [answer.readline() for _ in range(5)]
    asked.sendall(b"shutdown\r\n")
    code = process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    held = (found["curr_items"], found["hash_power_level"], values, code)
    return held, took, cpu


def main():
    if len(sys.argv) < 4:
        sys.exit("expected ITEMS ROUNDS PREFIX...")
    items, rounds, prefix = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    ways = {"plain": [], "prefix": []}
    for turn in range(rounds):
        for way in list(ways)[:: 1 if turn % 2 else -1]:
            ways[way].append(run(prefix if way == "prefix" else [], items))
    held = {repr(one) for runs in ways.values() for one, _, _ in runs}
    for one in held:
        print("items, power of the table, two values, exit status:", one)
    for way, runs in ways.items():
        medians = [statistics.median(column) for column in zip(*[run[1:] for run in runs])]
        print(f"{way}: {medians[0]:.3f} s, {medians[1]:.3f} s of CPU time")
    sys.exit("the runs differ" if len(held) > 1 else 0)


main()
