/*
 * Threads that are cancelled while they wait within what they have called by dimmer::migrate, or in a region: they end, what they have on the
 * stack is destroyed, and the core serves the next.
 */
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <ctime>

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dimmer.hpp"

DIMMER_SITE(site, "site");

static std::atomic<int> destroyed, cleaned, waits, interrupted;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
static int ends[2];

struct guard {
    guard() {}
    ~guard() { destroyed++; }
    guard(const guard &) = delete;
    guard &operator=(const guard &) = delete;
};

static void unlock(void *) {
    pthread_mutex_unlock(&lock);
    cleaned++;
}

static void wait_for_signal() {
    waits = 1;
    pause();
}

static void wait_for_data() {
    char byte;
    waits = 1;
    (void)!read(ends[0], &byte, 1);
}

static void wait_for_condition() {
    pthread_mutex_lock(&lock);
    pthread_cleanup_push(unlock, nullptr);
    waits = 1;
    for (;;) {
        pthread_cond_wait(&never, &lock);
    }
    pthread_cleanup_pop(1);
}

/* What it waits for with cancellation switched off goes on as without Dimmer. */
static void wait_without() {
    int before;
    char byte = 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    waits = 1;
    if (read(ends[0], &byte, 1) != 1 || byte != 'x') {
        interrupted = 1;
    }
    pthread_setcancelstate(before, nullptr);
    pthread_testcancel();
}

static void (*const WAYS[])() = {wait_for_signal, wait_for_data, wait_for_condition, wait_without};

static void *migrate(void *way) {
    guard outer;
    dimmer::migrate([&] {
        guard inner;
        (*static_cast<void (*const *)()>(way))();
    });
    return nullptr;
}

static void *enter(void *way) {
    guard outer;
    dimmer::region region(site);
    guard inner;
    (*static_cast<void (*const *)()>(way))();
    return nullptr;
}

static void only_ask() { pthread_testcancel(); }

/* Is cancelled already where it calls what begins with starting the cores, if it is the process's first. */
static void *begin_cancelled(void *) {
    static void (*const way)() = only_ask;
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    waits = 1;
    while (waits != 2) {
        sched_yield();
    }
    pthread_setcancelstate(before, nullptr);
    return migrate(const_cast<void (**)()>(&way));
}

/* Lasts longer than homes sleep. */
static void let_wait() {
    const struct timespec while_ = {0, 250000000};
    nanosleep(&while_, nullptr);
}

/* Has a thread wait so, and cancels it; what became of it. */
static const char *outcome(void *(*function)(void *), void (*const *way)()) {
    destroyed = cleaned = waits = interrupted = 0;
    pthread_t thread;
    if (pthread_create(&thread, nullptr, function, const_cast<void (**)()>(way)) != 0) {
        return "not begun";
    }
    while (!waits) {
        sched_yield();
    }
    let_wait();
    pthread_cancel(thread);
    if (*way == wait_without) {
        let_wait();
        (void)!write(ends[1], "x", 1);
    }
    void *result;
    pthread_join(thread, &result);
    if (result != PTHREAD_CANCELED || interrupted) {
        return "something else";
    }
    return destroyed != 2 || cleaned != (*way == wait_for_condition) ? "not destroyed" : "ended";
}

int main() {
    if (pipe(ends) != 0) {
        return 1;
    }
    pthread_t first;
    void *result;
    if (pthread_create(&first, nullptr, begin_cancelled, nullptr) != 0) {
        return 1;
    }
    while (!waits) {
        sched_yield();
    }
    pthread_cancel(first);
    waits = 2;
    pthread_join(first, &result);
    std::printf("begin: %s, %d\n", result == PTHREAD_CANCELED ? "ended" : "something else", destroyed.load());
    dimmer_decide(&site, DIMMER_WHERE_MIGRATE);
    for (void (*const &way)() : WAYS) {
        std::printf("migrate: %s\n", outcome(migrate, &way));
        std::printf("region: %s\n", outcome(enter, &way));
    }
    const long home = syscall(SYS_gettid);
    long there = home;
    dimmer::migrate([&] { there = syscall(SYS_gettid); });
    std::printf("after: moves %d\n", there != home);
}
