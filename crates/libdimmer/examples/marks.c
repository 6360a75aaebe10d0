/* Marks, in C and C++, on several threads. */
#include <pthread.h>
#include <stdio.h>

#include "dimmer.h"

enum { THREADS = 3, TURNS = 10 };

static void parse(void) {
    dimmer_mark();
}

static void *serve(void *unused) {
    (void)unused;
    for (int i = 0; i < TURNS; i++) {
        parse();
        dimmer_mark();
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, serve, NULL);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    printf("served\n");
    return 0;
}
