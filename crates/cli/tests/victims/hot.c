// Calls a short function from two threads, which does a thousand times as much work elsewhere, until
// its first instruction is as it was built, or for as many seconds as the argument says. Prints
// whether it was changed at first, and whether it is at the end.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static volatile int is_over;
static unsigned long sums[2];

__attribute__((noinline, noclone, noipa, aligned(4096))) unsigned long hot(unsigned long number) {
    return number * 3 + 7;
}

// Behind a landing pad, if it is built with one.
static int is_changed(void) {
    volatile unsigned char *code = (volatile unsigned char *)hot;
    return code[0] == 0xe9 || code[4] == 0xe9;
}

static void *work(void *sum) {
    unsigned long number = 0;
    while (!is_over) {
        if (hot(number) != number * 3 + 7)
            abort();
        for (int other = 0; other < 1000; other++)
            __asm__ volatile("" : "+r"(number));
        number++;
    }
    *(unsigned long *)sum = number;
    return NULL;
}

int main(int count, char **arguments) {
    if (count < 2)
        return 2;
    pthread_t threads[2];
    int was_changed = is_changed();
    for (int thread = 0; thread < 2; thread++)
        pthread_create(&threads[thread], NULL, work, &sums[thread]);
    for (time_t end = time(NULL) + atoi(arguments[1]); is_changed() && time(NULL) < end;)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    // The function goes on as it was.
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    is_over = 1;
    for (int thread = 0; thread < 2; thread++)
        pthread_join(threads[thread], NULL);
    printf("changed: %d, then %d\n", was_changed, is_changed());
    return sums[0] && sums[1] ? 0 : 3;
}
