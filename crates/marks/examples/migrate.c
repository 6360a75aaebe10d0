/*
 * Migrates a few times by itself (paper 004, section 4.2), and prints where it is.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>

#include "ultmigration.h"

/* Prints what a thread inherits that was started from a slow core. */
static void *inherit(void *unused) {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    printf("a new thread: SIGTERM %s\n", sigismember(&blocked, SIGTERM) ? "blocked" : "arrives");
    fprintf(stderr, "started on cpu %d\n", sched_getcpu());
    return unused;
}

int main(void) {
    pthread_t thread;
    ult_migrate(ULT_SLOW);
    printf("registered: %d\n", ult_registered());
    ult_register_klt();
    ult_register_klt();
    printf("registered: %d\n", ult_registered());
    for (int i = 0; i < 6; i++) {
        enum ult_thread_type type = i % 3 == 0 ? ULT_FAST : ULT_SLOW;
        ult_migrate(type);
        fprintf(stderr, "%s on cpu %d\n", type == ULT_FAST ? "fast" : "slow", sched_getcpu());
    }
    pthread_create(&thread, NULL, inherit, NULL);
    pthread_join(thread, NULL);
    fprintf(stderr, "slow on cpu %d\n", sched_getcpu());
    ult_migrate(ULT_TYPE_MAX);
    ult_unregister_klt();
    printf("registered: %d\n", ult_registered());
    return 0;
}
