/*
 * Threads that each pass two marks in turn. Some have ended at swp_deinit(), one has not.
 */
#include <pthread.h>
#include <stdio.h>

#include "swp.h"

enum { THREADS = 8, TURNS = 1000 };

static pthread_barrier_t passed, printed;

static void pass(void) {
    for (int i = 0; i < TURNS; i++) {
        swp_mark("first", "a");
        swp_mark("second", NULL);
    }
}

static void *run(void *last) {
    pass();
    if (last != NULL) {
        pthread_barrier_wait(&passed);
        pthread_barrier_wait(&printed);
        /* These are not measured any more. */
        pass();
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&passed, NULL, 2);
    pthread_barrier_init(&printed, NULL, 2);
    swp_init();
    for (int i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, run, i == THREADS - 1 ? threads : NULL);
    }
    for (int i = 0; i < THREADS - 1; i++) {
        pthread_join(threads[i], NULL);
    }
    pthread_barrier_wait(&passed);
    swp_deinit();
    pthread_barrier_wait(&printed);
    pthread_join(threads[THREADS - 1], NULL);
    printf("done\n");
    return 0;
}
