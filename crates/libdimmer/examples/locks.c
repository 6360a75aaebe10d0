/*
 * Reader-writer locks, fair mutexes, conditions and barriers with all strategies: threads that are
 * not kept apart lose counts. What is no use of a lock gives an error: every result is checked.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dimmer.h"

enum { THREADS = 4, SECTIONS = 500 };

static dimmer_mutex mutex;
static dimmer_rwlock rwlock;
static dimmer_cond changed;
static dimmer_barrier barrier;
static long sum, copy, turn;
static pthread_key_t key;

static void expect(int line, int is_so) {
    if (!is_so) {
        fprintf(stderr, "locks.c:%d\n", line);
        abort();
    }
}
#define EXPECT(is_so) expect(__LINE__, is_so)

static void run(void *(*function)(void *), int count) {
    pthread_t threads[THREADS];
    static const long numbers[THREADS] = {0, 1, 2, 3};
    for (int i = 0; i < count; i++) {
        EXPECT(pthread_create(&threads[i], NULL, function, (void *)&numbers[i]) == 0);
    }
    for (int i = 0; i < count; i++) {
        EXPECT(pthread_join(threads[i], NULL) == 0);
    }
}

/* Writers change both numbers, so readers find them equal. */
static void *read_and_write(void *unused) {
    (void)unused;
    EXPECT(dimmer_rwlock_start(&rwlock) == 0);
    for (int i = 0; i < SECTIONS; i++) {
        EXPECT(dimmer_rwlock_rdlock(&rwlock) == 0);
        EXPECT(sum == copy);
        EXPECT(dimmer_rwlock_unlock(&rwlock) == 0);
        EXPECT(dimmer_rwlock_wrlock(&rwlock) == 0);
        sum++;
        copy++;
        EXPECT(dimmer_rwlock_unlock(&rwlock) == 0);
    }
    return NULL;
}

/* The main thread writes meanwhile. */
static void *while_another_writes(void *unused) {
    (void)unused;
    EXPECT(dimmer_rwlock_unlock(&rwlock) == EPERM);
    EXPECT(dimmer_rwlock_tryrdlock(&rwlock) == EBUSY);
    EXPECT(dimmer_rwlock_trywrlock(&rwlock) == EBUSY);
    return NULL;
}

/* The main thread reads meanwhile. */
static void *while_another_reads(void *unused) {
    (void)unused;
    EXPECT(dimmer_rwlock_unlock(&rwlock) == EPERM);
    EXPECT(dimmer_rwlock_trywrlock(&rwlock) == EBUSY);
    EXPECT(dimmer_rwlock_tryrdlock(&rwlock) == 0);
    EXPECT(dimmer_rwlock_unlock(&rwlock) == 0);
    EXPECT(dimmer_rwlock_rdlock(&rwlock) == 0);
    EXPECT(dimmer_rwlock_unlock(&rwlock) == 0);
    EXPECT(dimmer_rwlock_unlock(&rwlock) == EPERM);
    return NULL;
}

/* The destructor of a key runs after those of all other data of the thread. */
static void end_read(void *unused) {
    (void)unused;
    EXPECT(dimmer_rwlock_rdlock(&rwlock) != 0);
    EXPECT(dimmer_rwlock_unlock(&rwlock) == 0);
    EXPECT(dimmer_rwlock_unlock(&rwlock) == EPERM);
}

static void *read_until_the_end(void *unused) {
    (void)unused;
    EXPECT(pthread_setspecific(key, &rwlock) == 0);
    EXPECT(dimmer_rwlock_rdlock(&rwlock) == 0);
    return NULL;
}

static void check_rwlock_errors(void) {
    EXPECT(dimmer_rwlock_unlock(&rwlock) == EPERM);
    EXPECT(dimmer_rwlock_wrlock(&rwlock) == 0);
    EXPECT(dimmer_rwlock_wrlock(&rwlock) == EDEADLK);
    EXPECT(dimmer_rwlock_rdlock(&rwlock) == EDEADLK);
    EXPECT(dimmer_rwlock_tryrdlock(&rwlock) == EBUSY);
    run(while_another_writes, 1);
    EXPECT(dimmer_rwlock_destroy(&rwlock) == EBUSY);
    EXPECT(dimmer_rwlock_unlock(&rwlock) == 0);
    EXPECT(dimmer_rwlock_rdlock(&rwlock) == 0);
    EXPECT(dimmer_rwlock_rdlock(&rwlock) == EDEADLK);
    EXPECT(dimmer_rwlock_wrlock(&rwlock) == EDEADLK);
    EXPECT(dimmer_rwlock_tryrdlock(&rwlock) == EBUSY);
    EXPECT(dimmer_rwlock_trywrlock(&rwlock) == EBUSY);
    run(while_another_reads, 1);
    EXPECT(dimmer_rwlock_destroy(&rwlock) == EBUSY);
    EXPECT(dimmer_rwlock_unlock(&rwlock) == 0);
    EXPECT(dimmer_rwlock_unlock(&rwlock) == EPERM);
    run(read_until_the_end, 1);
}

/* Threads take turns under a fair mutex, each woken by the one before it. */
static void *take_turns(void *number) {
    EXPECT(dimmer_mutex_start(&mutex) == 0);
    for (int i = 0; i < SECTIONS / 4; i++) {
        EXPECT(dimmer_mutex_lock(&mutex) == 0);
        while (turn % THREADS != *(const long *)number) {
            EXPECT(dimmer_cond_wait(&changed, &mutex) == 0);
        }
        turn++;
        EXPECT(dimmer_cond_broadcast(&changed) == 0);
        EXPECT(dimmer_mutex_unlock(&mutex) == 0);
    }
    return NULL;
}

/* The main thread has the mutex meanwhile. */
static void *while_another_has_it(void *unused) {
    (void)unused;
    EXPECT(dimmer_mutex_unlock(&mutex) == EPERM);
    EXPECT(dimmer_mutex_trylock(&mutex) == EBUSY);
    EXPECT(dimmer_cond_wait(&changed, &mutex) == EPERM);
    return NULL;
}

static void check_mutex_errors(void) {
    EXPECT(dimmer_mutex_unlock(&mutex) == EPERM);
    EXPECT(dimmer_cond_wait(&changed, &mutex) == EPERM);
    EXPECT(dimmer_mutex_lock(&mutex) == 0);
    EXPECT(dimmer_mutex_lock(&mutex) == EDEADLK);
    run(while_another_has_it, 1);
    EXPECT(dimmer_mutex_destroy(&mutex) == EBUSY);
    EXPECT(dimmer_mutex_unlock(&mutex) == 0);
}

/* Between two rounds, all threads have counted. */
static void *count_in_rounds(void *unused) {
    (void)unused;
    EXPECT(dimmer_barrier_start(&barrier) == 0);
    for (int i = 1; i <= SECTIONS / 10; i++) {
        __atomic_fetch_add(&sum, 1, __ATOMIC_RELAXED);
        const int last = dimmer_barrier_wait(&barrier);
        EXPECT(last == 0 || last == PTHREAD_BARRIER_SERIAL_THREAD);
        EXPECT(__atomic_load_n(&sum, __ATOMIC_RELAXED) == (long)i * THREADS);
        EXPECT(dimmer_barrier_wait(&barrier) <= 0);
        __atomic_fetch_add(&turn, last == 0 ? 0 : 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void check_before_any_is_made(void) {
    EXPECT(dimmer_rwlock_rdlock(&rwlock) == EINVAL);
    EXPECT(dimmer_rwlock_wrlock(NULL) == EINVAL);
    EXPECT(dimmer_rwlock_unlock(&rwlock) == EINVAL);
    EXPECT(dimmer_rwlock_init(&rwlock, "owner") == EINVAL);
    EXPECT(dimmer_rwlock_init(NULL, "ownr") == EINVAL);
    EXPECT(dimmer_mutex_init_mcs(&mutex, "owner") == EINVAL);
    EXPECT(dimmer_mutex_init_mcs(NULL, "ownr") == EINVAL);
    EXPECT(dimmer_cond_init(NULL) == EINVAL);
    EXPECT(dimmer_cond_signal(&changed) == EINVAL);
    EXPECT(dimmer_cond_wait(&changed, &mutex) == EINVAL);
    EXPECT(dimmer_barrier_init(&barrier, "ownr", THREADS) == EINVAL);
    EXPECT(dimmer_barrier_init(&barrier, "spin", 0) == EINVAL);
    EXPECT(dimmer_barrier_init(NULL, "spin", THREADS) == EINVAL);
    EXPECT(dimmer_barrier_wait(&barrier) == EINVAL);
}

int main(void) {
    check_before_any_is_made();
    EXPECT(pthread_key_create(&key, end_read) == 0);
    EXPECT(dimmer_cond_init(&changed) == 0);
    EXPECT(dimmer_cond_wait(&changed, &mutex) == EINVAL);
    char names[128];
    snprintf(names, sizeof names, "%s", dimmer_mutex_strategies());
    for (char *name = strtok(names, ", "); name; name = strtok(NULL, ", ")) {
        sum = copy = turn = 0;
        EXPECT(dimmer_rwlock_init(&rwlock, name) == 0);
        EXPECT(dimmer_mutex_init_mcs(&mutex, name) == 0);
        run(read_and_write, THREADS);
        run(take_turns, THREADS);
        check_rwlock_errors();
        check_mutex_errors();
        EXPECT(dimmer_rwlock_destroy(&rwlock) == 0);
        EXPECT(dimmer_rwlock_rdlock(&rwlock) == EINVAL);
        EXPECT(dimmer_mutex_destroy(&mutex) == 0);
        printf("%s %ld %ld\n", name, sum, turn);
    }
    EXPECT(dimmer_cond_destroy(&changed) == 0);
    EXPECT(dimmer_cond_broadcast(&changed) == EINVAL);
    snprintf(names, sizeof names, "%s", dimmer_barrier_strategies());
    for (char *name = strtok(names, ", "); name; name = strtok(NULL, ", ")) {
        sum = turn = 0;
        EXPECT(dimmer_barrier_init(&barrier, name, THREADS) == 0);
        run(count_in_rounds, THREADS);
        EXPECT(dimmer_barrier_destroy(&barrier) == 0);
        EXPECT(dimmer_barrier_wait(&barrier) == EINVAL);
        printf("barrier %s %ld %ld\n", name, sum, turn);
    }
    EXPECT(dimmer_barrier_init(&barrier, NULL, 1) == 0);
    EXPECT(dimmer_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD);
    EXPECT(dimmer_barrier_destroy(&barrier) == 0);
    return 0;
}
