// Locks of all kinds, taken an exact number of times. The output and the results must not depend on
// whether they are observed. Where a thread has to wait for a lock, its holder keeps the lock until
// the thread sleeps in the kernel.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KEPT __attribute__((noinline, noclone, noipa))
enum { SHORT = 1000, WAITERS = 2, TURNS = 5 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t other = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t barrier;
static atomic_int waiters[WAITERS];
static int is_ready;

// Returns once this thread of the process sleeps.
static void await_sleep(int thread) {
    char file[64], state = 0;
    snprintf(file, sizeof file, "/proc/self/task/%d/stat", thread);
    while (state != 'S') {
        FILE *stat = fopen(file, "r");
        if (!stat || fscanf(stat, "%*d (%*[^)]) %c", &state) != 1)
            exit(9);
        fclose(stat);
    }
}

static pthread_t start(void *(*run)(void *), void *argument) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, argument))
        exit(8);
    return thread;
}

KEPT void take_short(void) {
    for (int round = 0; round < SHORT; ++round) {
        pthread_mutex_lock(&other);
        pthread_mutex_unlock(&other);
    }
}

KEPT void *take_contended(void *number) {
    waiters[(long)number] = (int)syscall(SYS_gettid);
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
    return NULL;
}

// Two threads wait for it.
KEPT void hold_long(void) {
    pthread_t threads[WAITERS];
    pthread_mutex_lock(&mutex);
    for (long number = 0; number < WAITERS; ++number) {
        threads[number] = start(take_contended, (void *)number);
        while (!waiters[number])
            ;
        await_sleep(waiters[number]);
    }
    pthread_mutex_unlock(&mutex);
    for (int number = 0; number < WAITERS; ++number)
        pthread_join(threads[number], NULL);
}

KEPT void take_rwlock(void) {
    struct timespec wrong = {0, -1}, past = {0, 0};
    for (int round = 0; round < TURNS; ++round) {
        pthread_rwlock_rdlock(&rwlock);
        pthread_rwlock_rdlock(&rwlock);
        printf("write while read: %d %d\n", pthread_rwlock_trywrlock(&rwlock) == EBUSY,
               pthread_rwlock_timedwrlock(&rwlock, &past) == ETIMEDOUT);
        pthread_rwlock_unlock(&rwlock);
        pthread_rwlock_unlock(&rwlock);
    }
    pthread_rwlock_wrlock(&rwlock);
    printf("write twice: %d\n", pthread_rwlock_wrlock(&rwlock) == EDEADLK);
    pthread_rwlock_unlock(&rwlock);
    printf("wrong time: %d\n", pthread_rwlock_timedrdlock(&rwlock, &wrong));
}

KEPT void *wait_for_condition(void *unused) {
    pthread_mutex_lock(&mutex);
    waiters[0] = (int)syscall(SYS_gettid);
    while (!is_ready)
        pthread_cond_wait(&condition, &mutex);
    pthread_mutex_unlock(&mutex);
    return unused;
}

KEPT void signal_condition(void) {
    waiters[0] = 0;
    pthread_t thread = start(wait_for_condition, NULL);
    while (!waiters[0])
        ;
    await_sleep(waiters[0]);
    pthread_mutex_lock(&mutex);
    is_ready = 1;
    pthread_cond_signal(&condition);
    pthread_mutex_unlock(&mutex);
    pthread_join(thread, NULL);
    struct timespec past = {0, 0};
    pthread_mutex_lock(&mutex);
    printf("past: %d\n", pthread_cond_timedwait(&condition, &mutex, &past) == ETIMEDOUT);
    pthread_mutex_unlock(&mutex);
}

// A wait for no moment is refused, and does not release the lock.
KEPT void refuse_wait(void) {
    struct timespec wrong = {0, -1};
    pthread_mutex_lock(&other);
    printf("refused: %d\n", pthread_cond_timedwait(&condition, &other, &wrong) == EINVAL);
    pthread_mutex_unlock(&other);
}

static void give_back(void *unused) {
    (void)unused;
    printf("given back: %d\n", pthread_mutex_unlock(&mutex));
}

KEPT void *wait_forever(void *unused) {
    pthread_mutex_lock(&mutex);
    pthread_cleanup_push(give_back, NULL);
    waiters[0] = (int)syscall(SYS_gettid);
    for (;;)
        pthread_cond_wait(&condition, &mutex);
    pthread_cleanup_pop(0);
    return unused;
}

KEPT void cancel_waiter(void) {
    void *result;
    waiters[0] = 0;
    pthread_t thread = start(wait_forever, NULL);
    while (!waiters[0])
        ;
    await_sleep(waiters[0]);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    printf("cancelled: %d, free: %d\n", result == PTHREAD_CANCELED, pthread_mutex_trylock(&mutex));
    pthread_mutex_unlock(&mutex);
}

KEPT void *pass_barrier(void *unused) {
    for (int round = 0; round < TURNS; ++round)
        pthread_barrier_wait(&barrier);
    return unused;
}

static pthread_mutex_t made(int kind, int robustness) {
    pthread_mutexattr_t attributes;
    pthread_mutex_t made;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, kind);
    pthread_mutexattr_setrobust(&attributes, robustness);
    pthread_mutex_init(&made, &attributes);
    return made;
}

static pthread_mutex_t robust;

KEPT void *die_with_it(void *unused) {
    pthread_mutex_lock(&robust);
    return unused;
}

KEPT void take_special(void) {
    pthread_mutex_t recursive = made(PTHREAD_MUTEX_RECURSIVE, PTHREAD_MUTEX_STALLED);
    pthread_mutex_lock(&recursive);
    pthread_mutex_lock(&recursive);
    printf("recursive: %d", pthread_mutex_trylock(&recursive));
    for (int count = 0; count < 4; ++count)
        printf(" %d", pthread_mutex_unlock(&recursive));
    pthread_mutex_t checked = made(PTHREAD_MUTEX_ERRORCHECK, PTHREAD_MUTEX_STALLED);
    pthread_mutex_lock(&checked);
    printf("\nchecked: %d", pthread_mutex_lock(&checked) == EDEADLK);
    printf(" %d", pthread_mutex_trylock(&checked) == EBUSY);
    printf(" %d", pthread_mutex_unlock(&checked));
    printf(" %d\n", pthread_mutex_unlock(&checked) == EPERM);
    robust = made(PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_ROBUST);
    pthread_join(start(die_with_it, NULL), NULL);
    printf("robust: %d", pthread_mutex_lock(&robust) == EOWNERDEAD);
    printf(" %d\n", pthread_mutex_unlock(&robust));
    printf("dead: %d\n", pthread_mutex_lock(&robust) == ENOTRECOVERABLE);
}

// In the child, a lock that the parent holds is released.
KEPT void fork_with_lock(void) {
    pthread_mutex_lock(&other);
    fflush(stdout);
    if (!fork()) {
        pthread_mutex_unlock(&other);
        take_short();
        puts("child");
        exit(0);
    }
    int status;
    wait(&status);
    pthread_mutex_unlock(&other);
    printf("status of the child: %d\n", status);
}

// To lock a mutex is no place where a thread may be cancelled, the first time at a site either.
KEPT void *lock_while_cancelled(void *unused) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    pthread_cancel(pthread_self());
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    printf("locked\n");
    return unused;
}

int main(void) {
    errno = 77;
    take_short();
    hold_long();
    printf("errno %d\n", errno);
    take_rwlock();
    signal_condition();
    refuse_wait();
    cancel_waiter();
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_t thread = start(pass_barrier, NULL);
    pass_barrier(NULL);
    pthread_join(thread, NULL);
    pthread_join(start(lock_while_cancelled, NULL), NULL);
    take_special();
    fork_with_lock();
    return 3;
}
