// What switching between threads costs, for a scheduler beside another: run in the guest of the
// tests of core specialisation. Prints `name value` (ns).
//
// usage: switches handover MS   two processes hand a byte to and fro by pipes
//        switches crowd MS      groups of senders and receivers, as in hackbench: time per message
//        switches wakes MS      a thread wakes workers that compute for a moment, as in schbench:
//                               how long they wait from then until they run
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static void fails(const char *what) {
    perror(what);
    exit(3);
}

static int handover(uint64_t ns) {
    int there[2], back[2];
    char byte = 0;
    long number = 0;
    if (pipe(there) || pipe(back))
        fails("pipe");
    pid_t child = fork();
    if (!child) {
        close(there[1]);
        while (read(there[0], &byte, 1) == 1 && write(back[1], &byte, 1) == 1)
            ;
        _exit(0);
    }
    uint64_t began = now_ns(), now = began;
    for (; now - began < ns; now = now_ns(), number++)
        if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
            fails("handover");
    close(there[1]);
    waitpid(child, 0, 0);
    printf("handover_ns %ld\n", (long)((now - began) / number));
    return 0;
}

enum { GROUPS = 2, MEMBERS = 5, BYTES = 100 };

// Each sender writes to each receiver in turn, until its time is over. Its exit closes what it
// writes to, which is how receivers end. Senders report how much they sent.
static int crowd(uint64_t ns) {
    int report[2];
    if (pipe(report))
        fails("pipe");
    uint64_t began = now_ns();
    for (int group = 0; group < GROUPS; group++) {
        int sockets[MEMBERS][2];
        for (int i = 0; i < MEMBERS; i++)
            if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets[i]))
                fails("socketpair");
        for (int i = 0; i < MEMBERS; i++) {
            if (!fork()) {
                char message[BYTES];
                for (int other = 0; other < MEMBERS; other++)
                    close(sockets[other][1]);
                while (read(sockets[i][0], message, BYTES) > 0)
                    ;
                _exit(0);
            }
        }
        for (int i = 0; i < MEMBERS; i++) {
            if (!fork()) {
                char message[BYTES] = {0};
                long sent = 0;
                while (now_ns() - began < ns)
                    for (int to = 0; to < MEMBERS; to++, sent++)
                        if (write(sockets[to][1], message, BYTES) != BYTES)
                            _exit(1);
                _exit(write(report[1], &sent, sizeof sent) != sizeof sent);
            }
        }
        for (int i = 0; i < MEMBERS; i++) {
            close(sockets[i][0]);
            close(sockets[i][1]);
        }
    }
    close(report[1]);
    long all = 0, sent;
    while (read(report[0], &sent, sizeof sent) == sizeof sent)
        all += sent;
    while (wait(0) > 0)
        ;
    if (!all)
        fails("crowd");
    printf("message_ns %ld\n", (long)((now_ns() - began) / all));
    return 0;
}

enum { WORKERS = 8, MOST = 1 << 16, COMPUTES_NS = 500000 };

static uint64_t waits[MOST];
static int number_of_waits, work[2];
static volatile int is_ended;

// The message is when it was sent.
static void *worker(void *unused) {
    uint64_t sent;
    while (read(work[0], &sent, sizeof sent) == sizeof sent && !is_ended) {
        uint64_t runs = now_ns();
        int at = __sync_fetch_and_add(&number_of_waits, 1);
        if (at < MOST)
            waits[at] = runs - sent;
        while (now_ns() - runs < COMPUTES_NS)
            ;
    }
    return unused;
}

static int compare(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

static int wakes(uint64_t ns) {
    pthread_t threads[WORKERS];
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    if (pipe(work))
        fails("pipe");
    for (int i = 0; i < WORKERS; i++)
        if (pthread_create(&threads[i], 0, worker, 0))
            fails("pthread_create");
    // Half of the time of all processors.
    struct timespec pause = {.tv_nsec = COMPUTES_NS * 2 / processors};
    for (uint64_t began = now_ns(), sent = began; sent - began < ns; sent = now_ns()) {
        if (write(work[1], &sent, sizeof sent) != sizeof sent)
            fails("wakes");
        nanosleep(&pause, 0);
    }
    is_ended = 1;
    close(work[1]);
    for (int i = 0; i < WORKERS; i++)
        pthread_join(threads[i], 0);
    int number = number_of_waits < MOST ? number_of_waits : MOST;
    if (!number)
        fails("wakes");
    qsort(waits, number, sizeof *waits, compare);
    printf("wake_median_ns %llu\nwake_p99_ns %llu\n", (unsigned long long)waits[number / 2],
           (unsigned long long)waits[number * 99 / 100]);
    return 0;
}

int main(int argc, char **argv) {
    uint64_t ns = argc == 3 ? strtoull(argv[2], 0, 10) * 1000000 : 0;
    if (ns && !strcmp(argv[1], "handover"))
        return handover(ns);
    if (ns && !strcmp(argv[1], "crowd"))
        return crowd(ns);
    if (ns && !strcmp(argv[1], "wakes"))
        return wakes(ns);
    fprintf(stderr, "switches: see the first lines of switches.c\n");
    return 2;
}
