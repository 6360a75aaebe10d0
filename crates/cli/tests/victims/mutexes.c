// Mutexes whose owner the kernel knows: locked, waited with and held in functions that may be moved
// to another core. The output must not depend on it.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KEPT __attribute__((noinline, noclone, noipa))

// Fewer rounds on an emulated processor.
#ifndef ROUNDS
#define ROUNDS 100
#endif
enum { CHILDS_ROUNDS = 50 * ROUNDS, PATIENCE_S = 20 };

// The kernel's id of this thread, read by a system call, as the C library's function would bring
// the thread home first.
static inline __attribute__((always_inline)) long kernels_thread(void) {
    long thread;
    __asm__ volatile("syscall" : "=a"(thread) : "0"((long)SYS_gettid) : "rcx", "r11", "memory");
    return thread;
}

static pthread_mutex_t inheriting, robust, normal = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static volatile int stage;

static struct timespec patience(void) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += PATIENCE_S;
    return end;
}

// Waits in the kernel for the holder's mutex; for that the kernel must know its owner.
static void *waits(void *argument) {
    while (!stage)
        __builtin_ia32_pause();
    struct timespec end = patience();
    stage = 2;
    int took = pthread_mutex_timedlock(argument, &end);
    return (void *)(long)(took ? took : pthread_mutex_unlock(argument));
}

// Locks a mutex and unlocks it while another thread waits for it. Counts errors, and in `elsewhere`
// how often the thread was not at home.
KEPT int holds(pthread_mutex_t *mutex, int *elsewhere) {
    int wrong = pthread_mutex_lock(mutex) != 0;
    *elsewhere += kernels_thread() != getpid();
    stage = 1;
    while (stage != 2)
        __builtin_ia32_pause();
    usleep(2000);
    return wrong + (pthread_mutex_unlock(mutex) != 0);
}

// Locks and unlocks a mutex of the program's own making that the kernel knows. Returns the number
// of errors; one is that the mutex was not this thread's.
KEPT int takes_own(void) {
    static unsigned word;
    int wrong = syscall(SYS_futex, &word, FUTEX_LOCK_PI_PRIVATE, 0, NULL, NULL, 0) != 0;
    wrong += (word & FUTEX_TID_MASK) != (unsigned)getpid();
    return wrong + (syscall(SYS_futex, &word, FUTEX_UNLOCK_PI_PRIVATE, 0, NULL, NULL, 0) != 0);
}

// Called with a mutex held.
KEPT int within(int rounds) {
    volatile int sum = 0;
    for (int i = 0; i < rounds; i++)
        sum += i;
    return kernels_thread() != getpid();
}

// Waits for a condition that another thread makes true.
KEPT int waits_for_change(pthread_mutex_t *mutex) {
    struct timespec end = patience();
    int wrong;
    while ((wrong = pthread_mutex_trylock(mutex)) == EBUSY)
        __builtin_ia32_pause();
    while (!wrong && !stage)
        wrong = pthread_cond_timedwait(&changed, mutex, &end);
    return wrong + pthread_mutex_unlock(mutex);
}

static void *changes(void *mutex) {
    pthread_mutex_lock(mutex);
    stage = 1;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(mutex);
    return NULL;
}

// Exits with the mutex held, which the next owner is to find out.
KEPT void dies(pthread_mutex_t *mutex) {
    pthread_mutex_lock(mutex);
    _exit(0);
}

KEPT int recovers(pthread_mutex_t *mutex) {
    int took = pthread_mutex_lock(mutex);
    return took == EOWNERDEAD ? pthread_mutex_consistent(mutex) + pthread_mutex_unlock(mutex) : -1;
}

// Inlined into `main`, so that each call is moved by itself.
static inline __attribute__((always_inline)) void check(const char *name, pthread_mutex_t *mutex, int is_known) {
    int wrong = 0, elsewhere = 0;
    pthread_t other;
    void *result;
    for (int i = 0; i < ROUNDS; i++) {
        stage = 0;
        pthread_create(&other, NULL, waits, mutex);
        wrong += holds(mutex, &elsewhere);
        pthread_join(other, &result);
        wrong += result != NULL;
        stage = 0;
        pthread_create(&other, NULL, changes, mutex);
        wrong += waits_for_change(mutex) != 0;
        pthread_join(other, NULL);
        pthread_mutex_lock(mutex);
        elsewhere += within(ROUNDS);
        pthread_mutex_unlock(mutex);
    }
    printf("%s: %d wrong, %d not at home\n", name, wrong, is_known ? elsewhere : 0);
}

int main(void) {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&inheriting, &kind);
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&robust, &kind);
    check("inheriting", &inheriting, 1);
    check("robust", &robust, 1);
    check("normal", &normal, 0);
    int own = 0;
    for (int i = 0; i < ROUNDS; i++)
        own += takes_own();
    printf("own: %d wrong\n", own);

    // For the kernel, the parent's thread is the owner, so the child's calls may move.
    pthread_mutex_lock(&inheriting);
    pid_t heir = fork();
    if (heir == 0) {
        for (int i = 0; i < CHILDS_ROUNDS; i++)
            within(1);
        _exit(0);
    }
    waitpid(heir, NULL, 0);
    pthread_mutex_unlock(&inheriting);

    pthread_mutex_t *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(shared, &kind);
    int wrong = 0;
    for (int i = 0; i < ROUNDS / 10; i++) {
        pid_t child = fork();
        if (child == 0)
            dies(shared);
        waitpid(child, NULL, 0);
        wrong += recovers(shared) != 0;
    }
    printf("left by the dead: %d wrong\n", wrong);
    return 0;
}
