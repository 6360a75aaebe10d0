// Robust mutexes that a condition's wait returns with after their owner has died: one to be
// recovered, and one given up for good. Calls of the thread that has waited move again afterwards.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KEPT __attribute__((noinline, noclone, noipa))

// Fewer rounds on an emulated processor.
#ifndef ROUNDS
#define ROUNDS 20
#endif
enum { CALLS = 5000 };

static inline __attribute__((always_inline)) long kernels_thread(void) {
    long thread;
    __asm__ volatile("syscall" : "=a"(thread) : "0"((long)SYS_gettid) : "rcx", "r11", "memory");
    return thread;
}

static pthread_mutex_t mutex;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int has_changed;

KEPT int within(int rounds) {
    volatile int sum = 0;
    for (int i = 0; i < rounds; i++)
        sum += i;
    return kernels_thread() != getpid();
}

// Ends its thread with the mutex held. If `tells` is set, it signals the waiting thread before;
// otherwise another thread does.
static void *dies(void *tells) {
    pthread_mutex_lock(&mutex);
    has_changed = 1;
    if (tells)
        pthread_cond_signal(&changed);
    return NULL;
}

// Gives up the dead owner's mutex for good, before the waiting thread is signaled.
static void *gives_up(void *unused) {
    pthread_t other;
    pthread_create(&other, NULL, dies, NULL);
    pthread_join(other, NULL);
    if (pthread_mutex_lock(&mutex) == EOWNERDEAD)
        pthread_mutex_unlock(&mutex);
    pthread_cond_signal(&changed);
    return unused;
}

// Returns the final result of the wait.
static int waits(void *(*other)(void *)) {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&mutex, &kind);
    has_changed = 0;
    pthread_mutex_lock(&mutex);
    pthread_t thread;
    pthread_create(&thread, NULL, other, &mutex);
    int result = 0;
    while (!has_changed && !result)
        result = pthread_cond_wait(&changed, &mutex);
    pthread_join(thread, NULL);
    return result;
}

int main(void) {
    int recovered = 0, unrecoverable = 0, elsewhere = 0;
    for (int i = 0; i < ROUNDS; i++) {
        recovered += waits(dies) == EOWNERDEAD;
        elsewhere += within(1);
        pthread_mutex_consistent(&mutex);
        pthread_mutex_unlock(&mutex);
        unrecoverable += waits(gives_up) == ENOTRECOVERABLE;
    }
    printf("%d recovered, %d not, %d not at home\n", recovered, unrecoverable, elsewhere);
    for (int i = 0; i < CALLS; i++)
        within(1);
    return 0;
}
