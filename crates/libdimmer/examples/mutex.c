/*
 * Threads add to a number under mutexes with all strategies. What is no use of a mutex gives an
 * error: every result is checked.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dimmer.h"

enum { THREADS = 4, SECTIONS = 1000 };

static dimmer_mutex mutex;
static long sum;

static void expect(int line, int is_so) {
    if (!is_so) {
        fprintf(stderr, "mutex.c:%d\n", line);
        abort();
    }
}
#define EXPECT(is_so) expect(__LINE__, is_so)

static void *add(void *unused) {
    (void)unused;
    EXPECT(dimmer_mutex_start(&mutex) == 0);
    for (int i = 0; i < SECTIONS; i++) {
        EXPECT(dimmer_mutex_lock(&mutex) == 0);
        sum++;
        EXPECT(dimmer_mutex_unlock(&mutex) == 0);
    }
    return NULL;
}

/* The main thread has the mutex meanwhile. */
static void *use_of_another(void *unused) {
    (void)unused;
    EXPECT(dimmer_mutex_unlock(&mutex) == EPERM);
    EXPECT(dimmer_mutex_trylock(&mutex) == EBUSY);
    return NULL;
}

static void run(void *(*function)(void *), int count) {
    pthread_t threads[THREADS];
    for (int i = 0; i < count; i++) {
        EXPECT(pthread_create(&threads[i], NULL, function, NULL) == 0);
    }
    for (int i = 0; i < count; i++) {
        EXPECT(pthread_join(threads[i], NULL) == 0);
    }
}

static void check_errors(void) {
    EXPECT(dimmer_mutex_unlock(&mutex) == EPERM);
    EXPECT(dimmer_mutex_lock(&mutex) == 0);
    EXPECT(dimmer_mutex_lock(&mutex) == EDEADLK);
    EXPECT(dimmer_mutex_trylock(&mutex) == EBUSY);
    run(use_of_another, 1);
    EXPECT(dimmer_mutex_destroy(&mutex) == EBUSY);
    EXPECT(dimmer_mutex_unlock(&mutex) == 0);
    EXPECT(dimmer_mutex_unlock(&mutex) == EPERM);
    EXPECT(dimmer_mutex_trylock(&mutex) == 0);
    EXPECT(dimmer_mutex_unlock(&mutex) == 0);
}

int main(void) {
    /* No mutex yet. */
    EXPECT(dimmer_mutex_lock(&mutex) == EINVAL);
    EXPECT(dimmer_mutex_init(&mutex, "owner") == EINVAL);
    EXPECT(dimmer_mutex_init(NULL, "ownr") == EINVAL);
    EXPECT(dimmer_mutex_lock(NULL) == EINVAL);
    char names[128];
    snprintf(names, sizeof names, "%s", dimmer_mutex_strategies());
    for (char *name = strtok(names, ", "); name; name = strtok(NULL, ", ")) {
        sum = 0;
        EXPECT(dimmer_mutex_init(&mutex, name) == 0);
        run(add, THREADS);
        check_errors();
        EXPECT(dimmer_mutex_destroy(&mutex) == 0);
        EXPECT(dimmer_mutex_unlock(&mutex) == EINVAL);
        printf("%s %ld\n", name, sum);
    }
    EXPECT(dimmer_mutex_init(&mutex, NULL) == 0);
    EXPECT(dimmer_mutex_destroy(&mutex) == 0);
    return 0;
}
