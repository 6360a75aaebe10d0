/*
 * A program with an allocator of its own. The allocator has a region itself, and holds a lock in
 * it. It ends the program if the thread that holds the lock enters it again, or if it is entered on
 * the way into a region or out of it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dimmer.h"

enum { THREADS = 8, TURNS = 200 };

DIMMER_SITE(allocation, "allocation");
DIMMER_SITE(plain, "plain");
DIMMER_SITE(handled, "handled");

static _Alignas(16) char heap[1 << 26];
static size_t used;
static atomic_int held_by;

/* The step that the calling thread is in, if it must not allocate. */
static __thread const char *volatile busy __attribute__((tls_model("initial-exec")));

static void give_up(const char *where) {
    const char *const texts[] = {"allocated in ", where, "\n"};
    for (int text = 0; text < 3; text++) {
        if (write(2, texts[text], strlen(texts[text])) < 0) {
            break;
        }
    }
    _exit(9);
}

void *malloc(size_t bytes) {
    if (busy) {
        give_up(busy);
    }
    const dimmer_entered entered = dimmer_enter(&allocation);
    const int self = gettid();
    int nobody = 0;
    while (!atomic_compare_exchange_weak(&held_by, &nobody, self)) {
        if (nobody == self) {
            give_up("an allocation");
        }
        nobody = 0;
    }
    const size_t room = (bytes + 31) & ~(size_t)15;
    char *const place = used + room <= sizeof heap ? heap + used : NULL;
    if (place) {
        used += room;
        memcpy(place, &bytes, sizeof bytes);
    }
    atomic_store(&held_by, 0);
    dimmer_exit(&allocation, entered);
    return place ? place + 16 : NULL;
}

void free(void *place) {
    (void)place;
}

void *calloc(size_t count, size_t bytes) {
    /* Memory that was never handed out is zero. */
    return malloc(count * bytes);
}

void *realloc(void *old, size_t bytes) {
    char *const place = malloc(bytes);
    if (place && old) {
        size_t before;
        memcpy(&before, (char *)old - 16, sizeof before);
        memcpy(place, old, before < bytes ? before : bytes);
    }
    return place;
}

void *memalign(size_t alignment, size_t bytes) {
    char *const place = malloc(bytes + alignment);
    return place ? place + (alignment - (uintptr_t)place % alignment) % alignment : NULL;
}

void *aligned_alloc(size_t alignment, size_t bytes) {
    return memalign(alignment, bytes);
}

int posix_memalign(void **place, size_t alignment, size_t bytes) {
    *place = memalign(alignment, bytes);
    return *place ? 0 : ENOMEM;
}

/* A region that must be entered and left without the allocator. */
static void region(const dimmer_site *site) {
    const char *const before = busy;
    busy = "the way into a region";
    const dimmer_entered entered = dimmer_enter(site);
    busy = "the way out of a region";
    dimmer_exit(site, entered);
    busy = before;
}

static void delegated(void *argument) {
    ++*(int *)argument;
}

static void handle(int number) {
    (void)number;
    region(&handled);
}

static void *run(void *result) {
    int count = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        region(&plain);
        busy = "a delegated call";
        dimmer_delegate(delegated, &count);
        busy = "a migration";
        dimmer_migrate(delegated, &count);
        busy = NULL;
        raise(SIGUSR1);
    }
    return count == 2 * TURNS ? result : NULL;
}

int main(void) {
    /* Dedicates cores and starts workers, while no lock is held. */
    const size_t cores = dimmer_dedicated_cores();
    struct sigaction action = {.sa_handler = handle};
    sigaction(SIGUSR1, &action, NULL);
    pthread_t threads[THREADS];
    int right = 0;
    for (int place = 0; place < THREADS; place++) {
        if (pthread_create(&threads[place], NULL, run, &right) != 0) {
            return 1;
        }
    }
    for (int place = 0; place < THREADS; place++) {
        void *result;
        pthread_join(threads[place], &result);
        right += result == &right;
    }
    printf("cores %zu, threads %d, allocations %s, regions %s\n", cores, right,
           dimmer_site_statistics(&allocation).calls > 0 ? "counted" : "lost",
           dimmer_site_statistics(&plain).calls > 0 ? "counted" : "lost");
    return 0;
}
