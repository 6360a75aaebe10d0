// The library that loads.c loads. Its constructor waits for a thread while the loader's lock is
// held.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

static void *constructs(void *unused) {
    sigset_t set;
    pthread_sigmask(SIG_BLOCK, 0, &set);
    gettid();
    return unused;
}

__attribute__((constructor)) static void construct(void) {
    pthread_t thread;
    pthread_create(&thread, 0, constructs, 0);
    pthread_join(thread, 0);
}

__attribute__((visibility("default"), noinline)) long plugged(long n) {
    long sum = 0;
    for (long i = 0; i < n; i++) sum += i * 3 ^ sum;
    __asm__ volatile("");
    return sum;
}
