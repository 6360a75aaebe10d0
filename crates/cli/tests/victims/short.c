// Two threads call a function that is over in no time until it has instructions of its own again: at
// most for a minute. Prints how it ended; ends with 1 if a call returned something wrong.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { ENTRY = 5 };
static _Atomic int is_over, is_wrong;

__attribute__((noinline, noclone, noipa)) long brief(long one, long other) {
    return 3 * one + other;
}

static void *call(void *unused) {
    // Some calls are made after it has lost its hook.
    for (long left = 100000, at = 0; left; at++) {
        if (brief(at, 1) != 3 * at + 1)
            is_wrong = 1;
        left -= is_over;
    }
    return unused;
}

int main(void) {
    unsigned char hooked[ENTRY];
    memcpy(hooked, (void *)brief, ENTRY);
    pthread_t threads[2];
    for (int at = 0; at < 2; at++)
        if (pthread_create(&threads[at], NULL, call, NULL))
            return 2;
    time_t end = time(NULL) + 60;
    int is_same = 1;
    while (is_same && time(NULL) < end) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        is_same = !memcmp(hooked, (void *)brief, ENTRY);
    }
    is_over = 1;
    for (int at = 0; at < 2; at++)
        pthread_join(threads[at], NULL);
    puts(is_same ? "as at the start" : "changed");
    return is_wrong;
}
