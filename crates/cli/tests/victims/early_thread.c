// A library that is initialised before all others, and starts a thread then.
#include <pthread.h>
#include <unistd.h>

static void *wait_for_ever(void *unused) {
    for (;;) pause();
    return unused;
}

__attribute__((constructor)) static void start(void) {
    pthread_t thread;
    pthread_create(&thread, 0, wait_for_ever, 0);
}
