// Conditions as in programs that were linked before glibc 2.3.2: a pointer, which only the
// functions of that version know. The output must not depend on what calls are moved.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#define KEPT __attribute__((noinline, noclone, noipa))
#define FIRST(name) __asm__(".symver first_" #name ", pthread_cond_" #name "@GLIBC_2.2.5")

// Fewer rounds on an emulated processor.
#ifndef ROUNDS
#define ROUNDS 300
#endif
enum { PATIENCE_S = 20 };

// A condition of that version is as large as `own`; the memory after it must stay unchanged.
struct condition {
    void *own;
    unsigned long behind[5];
};

int first_init(struct condition *, const pthread_condattr_t *);
int first_destroy(struct condition *);
int first_wait(struct condition *, pthread_mutex_t *);
int first_timedwait(struct condition *, pthread_mutex_t *, const struct timespec *);
int first_signal(struct condition *);
int first_broadcast(struct condition *);
FIRST(init);
FIRST(destroy);
FIRST(wait);
FIRST(timedwait);
FIRST(signal);
FIRST(broadcast);

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct condition ball, ended;
static int side, players = 2;

static struct timespec patience(void) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += PATIENCE_S;
    return end;
}

// Waits for the ball and throws it back; returns whether something went wrong.
KEPT int plays(int own) {
    struct timespec end = patience();
    pthread_mutex_lock(&mutex);
    int wrong = 0;
    while (side != own && !wrong)
        wrong = first_timedwait(&ball, &mutex, &end);
    side = !own;
    wrong += first_signal(&ball);
    pthread_mutex_unlock(&mutex);
    return wrong;
}

static void *player(void *own) {
    long wrong = 0;
    for (int i = 0; i < ROUNDS && !wrong; i++)
        wrong += plays((int)(long)own) != 0;
    pthread_mutex_lock(&mutex);
    players--;
    first_broadcast(&ended);
    pthread_mutex_unlock(&mutex);
    return (void *)wrong;
}

// Inlined into `main`, as a thread that waits in a moved call keeps others from being moved.
static inline __attribute__((always_inline)) int waits_for_the_end(void) {
    pthread_mutex_lock(&mutex);
    int wrong = 0;
    while (players && !wrong)
        wrong = first_wait(&ended, &mutex);
    pthread_mutex_unlock(&mutex);
    return wrong;
}

int main(void) {
    pthread_t threads[2];
    void *result;
    long wrong = first_init(&ball, NULL) + first_init(&ended, NULL);
    for (long i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, player, (void *)i);
    wrong += waits_for_the_end();
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], &result);
        wrong += (long)result;
    }
    for (int i = 0; i < 5; i++)
        wrong += ball.behind[i] + ended.behind[i] != 0;
    wrong += first_destroy(&ball) + first_destroy(&ended);
    printf("%ld wrong\n", wrong);
    return 0;
}
