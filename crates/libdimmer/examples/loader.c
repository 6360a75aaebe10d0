/*
 * Loads a library that has regions, makes a thread that must not allocate work in it, unloads it,
 * and only then lets the thread end.
 *
 *     loader LIBRARY
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 3 };

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);

/* Whether the calling thread must not allocate. */
static __thread volatile int busy;

void *malloc(size_t bytes) {
    if (busy) {
        abort();
    }
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
    if (busy) {
        abort();
    }
    return __libc_calloc(count, bytes);
}

static int (*work)(int);
static sem_t has_worked, is_unloaded;

static void *run(void *result) {
    busy = 1;
    int sum = 0;
    for (int turn = 0; turn < 1000; turn++) {
        sum += work(0);
    }
    busy = 0;
    sem_post(&has_worked);
    sem_wait(&is_unloaded);
    return sum == 1000 ? result : NULL;
}

int main(int count, char **arguments) {
    if (count != 2 || sem_init(&has_worked, 0, 0) != 0 || sem_init(&is_unloaded, 0, 0) != 0) {
        return 1;
    }
    for (int round = 0; round < ROUNDS; round++) {
        void *const library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        void *const found = dlsym(library, "plugin_work");
        memcpy(&work, &found, sizeof work);
        /* Dedicates cores and starts workers, if any. */
        const int here = work(0);
        pthread_t thread;
        if (pthread_create(&thread, NULL, run, arguments) != 0) {
            return 1;
        }
        sem_wait(&has_worked);
        if (dlclose(library) != 0) {
            return 1;
        }
        sem_post(&is_unloaded);
        void *result;
        pthread_join(thread, &result);
        printf("round %d: %s\n", round, here == 1 && result == arguments ? "right" : "wrong");
    }
    return 0;
}
