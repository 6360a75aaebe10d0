// Signals that come while a call is migrated, and handlers that are left in every way. The output
// must not depend on it.
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define KEPT __attribute__((noinline, noclone, noipa))

// Fewer rounds on an emulated processor.
#ifndef ROUNDS
#define ROUNDS 100
#endif

// Takes longer than a move there and back.
static inline __attribute__((always_inline)) void work(void) {
    volatile unsigned sum = 0;
    for (unsigned i = 0; i < 60000; i++)
        sum += i;
}

KEPT void stays_away(void) { work(); }

static char *page;
static stack_t stack;
static sigjmp_buf out;
static volatile sig_atomic_t caught;

static void jumps(int signal) {
    (void)signal;
    caught++;
    siglongjmp(out, 1);
}

static void returns(int signal) {
    (void)signal;
    caught++;
    // Brings the thread home.
    if (gettid() == getpid())
        mprotect(page, 4096, PROT_READ | PROT_WRITE);
}

KEPT void writes(volatile char *to) {
    work();
    *to = 1;
}

static int is_as_ever(void) {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    stack_t now;
    sigaltstack(NULL, &now);
    for (int signal = 1; signal < 32; signal++)
        if (sigismember(&blocked, signal))
            return 0;
    return now.ss_sp == stack.ss_sp && !now.ss_flags;
}

static volatile int is_migrated;

static void cleaned(void *what) { puts(what); }

KEPT void is_long(void) {
    for (int i = 0; i < 2000; i++) {
        work();
        is_migrated = 1;
    }
}

static void ends(int signal) {
    (void)signal;
    pthread_exit("ended by a handler");
}

static void *is_told(void *how) {
    int before;
    if (how)
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before);
    pthread_cleanup_push(cleaned, "cleaned up");
    stays_away();
    is_long();
    for (;;)
        pause();
    pthread_cleanup_pop(0);
    return NULL;
}

int main(void) {
    page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack = (stack_t){.ss_sp = malloc(65536), .ss_size = 65536};
    sigaltstack(&stack, NULL);
    signal(SIGSEGV, jumps);
    volatile int right = 0;
    for (volatile int i = 0; i < ROUNDS; i++) {
        if (sigsetjmp(out, 1) == 0)
            writes(page);
        right += is_as_ever();
    }
    printf("jumped %d, right %d\n", caught, right);
    signal(SIGSEGV, returns);
    caught = right = 0;
    for (int i = 0; i < ROUNDS; i++) {
        mprotect(page, 4096, PROT_NONE);
        writes(page);
        right += is_as_ever();
    }
    printf("returned %d, right %d\n", caught, right);
    signal(SIGUSR1, ends);
    for (int i = 0; i < 6; i++) {
        is_migrated = 0;
        pthread_t thread;
        pthread_create(&thread, NULL, is_told, i % 2 ? page : NULL);
        while (!is_migrated)
            usleep(100);
        if (i % 2)
            pthread_cancel(thread);
        else
            pthread_kill(thread, SIGUSR1);
        void *result;
        pthread_join(thread, &result);
        puts(result == PTHREAD_CANCELED ? "cancelled" : (char *)result);
    }
    return 0;
}
