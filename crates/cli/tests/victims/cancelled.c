// Threads that are cancelled: while they wait in functions that may be moved to another core, while
// they compute there, and anywhere, at their own request. The output must not depend on what is
// moved.
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define KEPT __attribute__((noinline, noclone, noipa))

// Fewer rounds on an emulated processor.
#ifndef ROUNDS
#define ROUNDS 20
#endif
enum { ANYWHERE = 10 * ROUNDS, PATIENCE_S = 120 };

static int nothing[2];
static sem_t never;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static volatile int is_waiting;
static int cleaned;

static void cleans(void *unused) {
    (void)unused;
    cleaned++;
}

static void gives_back(void *taken) {
    cleaned++;
    pthread_mutex_unlock(taken);
}

KEPT void reads(void) {
    char byte;
    read(nothing[0], &byte, 1);
}

KEPT void sleeps(void) {
    struct timespec long_time = {1000, 0};
    nanosleep(&long_time, NULL);
}

KEPT void polls(void) {
    struct pollfd file = {nothing[0], POLLIN, 0};
    poll(&file, 1, -1);
}

KEPT void waits_for_never(void) { sem_wait(&never); }

KEPT void waits_for_change(void) {
    pthread_mutex_lock(&mutex);
    pthread_cleanup_push(gives_back, &mutex);
    for (;;)
        pthread_cond_wait(&change, &mutex);
    pthread_cleanup_pop(1);
}

KEPT void computes(void) {
    volatile unsigned sum = 0;
    for (;;) {
        for (int i = 0; i < 10000; i++)
            sum += i;
        pthread_testcancel();
    }
}

static void (*const ways[])(void) = {reads, sleeps, polls, waits_for_never, waits_for_change, computes};
static const char *const names[] = {"reads", "sleeps", "polls", "waits", "waits for a change", "computes"};

// Takes longer than a move there and back; the first hooked call of a thread is not moved.
KEPT void begins(int rounds) {
    volatile int sum = 0;
    for (int i = 0; i < rounds; i++)
        sum += i;
}

static void *waits(void *way) {
    pthread_cleanup_push(cleans, NULL);
    begins(100);
    is_waiting = 1;
    ((void (*)(void))way)();
    pthread_cleanup_pop(0);
    return NULL;
}

// Locks and unlocks a mutex that the kernel knows, repeatedly, with moved calls in between. Each
// thread has its own mutex, as it is unknown afterwards whether it is held. There is no cleanup
// handler, as such code is compiled for cancellation in calls only.
static void *anywhere(void *mutex) {
    int old;
    begins(100);
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
    is_waiting = 1;
    for (;;) {
        pthread_mutex_lock(mutex);
        begins(3);
        pthread_mutex_unlock(mutex);
        begins(3);
    }
    return NULL;
}

// Requests asynchronous cancellation in a moved call, and then the deferred kind again, after which
// calls move.
KEPT int asks(void) {
    int old[4];
    begins(100);
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old[0]);
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old[1]);
    pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &old[2]);
    pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &old[3]);
    return old[0] == PTHREAD_CANCEL_DEFERRED && old[1] == PTHREAD_CANCEL_ASYNCHRONOUS &&
           old[2] == PTHREAD_CANCEL_ASYNCHRONOUS && old[3] == PTHREAD_CANCEL_DEFERRED &&
           pthread_setcanceltype(5, &old[0]) != 0;
}

// Sleeps for a moment in a moved call with cancellation switched off; returns whether nothing
// interrupted the sleep.
KEPT int naps(void) {
    struct timespec moment = {0, 100000000};
    return nanosleep(&moment, NULL) == 0;
}

static int whole_naps;

static void *is_not_cancelled(void *unused) {
    int old;
    begins(100);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    is_waiting = 1;
    whole_naps += naps();
    pthread_setcancelstate(old, &old);
    pthread_testcancel();
    return unused;
}

// Returns whether a thread ends as cancelled threads do, some microseconds after it has started its
// work.
static int is_cancelled(void *(*thread)(void *), void *argument, int microseconds) {
    pthread_t other;
    void *result;
    is_waiting = 0;
    pthread_create(&other, NULL, thread, argument);
    while (!is_waiting)
        __builtin_ia32_pause();
    usleep(microseconds);
    int wrong = pthread_cancel(other);
    wrong += pthread_join(other, &result);
    return wrong == 0 && result == PTHREAD_CANCELED;
}

int main(void) {
    // Ends the process if a thread never stops waiting.
    alarm(PATIENCE_S);
    pipe(nothing);
    sem_init(&never, 0, 0);
    for (unsigned way = 0; way < sizeof ways / sizeof *ways; way++) {
        int cancelled = 0;
        cleaned = 0;
        for (int i = 0; i < ROUNDS; i++)
            cancelled += is_cancelled(waits, (void *)ways[way], i * 100);
        printf("%s: %d cancelled, %d cleaned up\n", names[way], cancelled, cleaned);
    }
    int late = 0;
    for (int i = 0; i < 3; i++)
        late += is_cancelled(is_not_cancelled, NULL, 20000);
    printf("%d naps, %d cancelled after them\n", whole_naps, late);
    // The mutex of the condition is not held.
    printf("%d\n", pthread_mutex_trylock(&mutex));
    int cancelled = 0;
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT);
    for (int i = 0; i < ANYWHERE; i++) {
        pthread_mutex_t own;
        pthread_mutex_init(&own, &kind);
        cancelled += is_cancelled(anywhere, &own, i);
    }
    printf("anywhere: %d cancelled\n", cancelled);
    int asked = 0;
    for (int i = 0; i < ROUNDS; i++)
        asked += asks();
    printf("asked: %d\n", asked);
    for (int i = 0; i < 1000; i++)
        begins(100);
    return 0;
}
