/*
 * Threads that end, or are cancelled, within what they have called by dimmer::run, dimmer::migrate and dimmer::delegate, and by the functions
 * of C: what they have on the stack is destroyed, and the program goes on.
 */
#include <atomic>
#include <cstdio>

#include <pthread.h>
#include <sched.h>

#include "dimmer.hpp"

DIMMER_SITE(site, "site");

static std::atomic<int> destroyed, waits, ended_otherwise;

/* Says that it was destroyed. */
struct guard {
    guard() {}
    ~guard() { destroyed++; }
    guard(const guard &) = delete;
    guard &operator=(const guard &) = delete;
};

static void end() {
    guard inner;
    pthread_exit(nullptr);
}

static void wait_for_cancellation() {
    guard inner;
    waits = 1;
    for (;;) {
        pthread_testcancel();
        sched_yield();
    }
}

static void end_in_c(void *) { end(); }

/* Runs a function in a thread of its own, which it ends, or another one cancels; what became of it. */
static const char *outcome(void *(*function)(void *), bool is_cancelled) {
    destroyed = waits = ended_otherwise = 0;
    pthread_t thread;
    if (pthread_create(&thread, nullptr, function, nullptr) != 0) {
        return "not begun";
    }
    if (is_cancelled) {
        while (!waits) {
            sched_yield();
        }
        pthread_cancel(thread);
    }
    void *result;
    pthread_join(thread, &result);
    if (result != (is_cancelled ? PTHREAD_CANCELED : nullptr)) {
        return "something else";
    }
    return destroyed != 2 ? "not destroyed" : ended_otherwise ? "lost" : "ended";
}

template <typename F> static void *with_guard(F call) {
    guard outer;
    try {
        call();
        ended_otherwise = 2;
    } catch (const dimmer::lost &) {
        ended_otherwise = 1;
    }
    return nullptr;
}

int main() {
    /* Where regions are moved, run() delegates; so it is tried where it stays. */
    dimmer_decide(&site, DIMMER_WHERE_STAY);
    std::printf("run: %s\n", outcome([](void *) {
        return with_guard([] { dimmer::run(site, end); });
    }, false));
    std::printf("run, cancelled: %s\n", outcome([](void *) {
        return with_guard([] { dimmer::run(site, wait_for_cancellation); });
    }, true));
    std::printf("run in C: %s\n", outcome([](void *) {
        return with_guard([] { dimmer_run(&site, end_in_c, nullptr); });
    }, false));
    std::printf("migrate: %s\n", outcome([](void *) {
        return with_guard([] { dimmer::migrate(end); });
    }, false));
    std::printf("migrate, cancelled: %s\n", outcome([](void *) {
        return with_guard([] { dimmer::migrate(wait_for_cancellation); });
    }, true));
    std::printf("migrate in C: %s\n", outcome([](void *) {
        return with_guard([] { dimmer_migrate(end_in_c, nullptr); });
    }, false));
    /* On a worker, what ends is the worker. */
    const bool moves = dimmer_dedicated_cores() > 0;
    const char *const delegated = outcome([](void *) {
        return with_guard([] { dimmer::delegate(end); });
    }, false);
    std::printf("delegate: %s\n", delegated);
    std::printf("delegate again: %s\n", outcome([](void *) {
        return with_guard([] { dimmer::delegate(end); });
    }, false));
    int sum = 0;
    dimmer::migrate([&] { sum += 1; });
    dimmer::run(site, [&] { sum += 2; });
    std::printf("after: %d, moves %d\n", sum, moves);
}
