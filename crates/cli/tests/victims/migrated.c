// Calls of all kinds that may be moved to another core. The output must not depend on it.
#define _GNU_SOURCE
#include <errno.h>
#include <immintrin.h>
#include <math.h>
#include <pthread.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEPT __attribute__((noinline, noclone, noipa))

// Fewer rounds on an emulated processor.
#ifndef ROUNDS
#define ROUNDS 400
#endif

// Takes longer than a move there and back.
static inline __attribute__((always_inline)) void work(void) {
    volatile unsigned sum = 0;
    for (unsigned i = 0; i < 60000; i++)
        sum += i;
}

struct wide {
    double values[5];
};

KEPT long integers(long a, long b, long c, long d, long e, long f, long g, long h) {
    work();
    return a + 2 * b + 3 * c + 5 * d + 7 * e + 11 * f + 13 * g + 17 * h;
}

KEPT double floats(double a, float b, double c, double d, double e, double f, double g, double h, double i) {
    work();
    return a + 2 * b + 3 * c + 5 * d + 7 * e + 11 * f + 13 * g + 17 * h + 19 * i;
}

KEPT long double extended(long double a, int b) {
    work();
    return a / b;
}

KEPT struct wide structure(struct wide from, int by) {
    work();
    for (int i = 0; i < 5; i++)
        from.values[i] *= by;
    return from;
}

KEPT __m128i vector(__m128i a, __m128i b) {
    work();
    return _mm_add_epi32(a, b);
}

KEPT int arguments(const char *format, ...) {
    char text[64];
    va_list rest;
    va_start(rest, format);
    work();
    int length = vsnprintf(text, sizeof text, format, rest);
    va_end(rest);
    return length + text[0];
}

KEPT int failing(void) {
    work();
    return close(-1);
}

static __thread int own = 5;

KEPT int *storage(void) {
    work();
    own++;
    return &own;
}

KEPT int nested(int depth) {
    work();
    return depth ? 1 + nested(depth - 1) : 0;
}

static jmp_buf before;

KEPT int jumping(int how) {
    work();
    if (how)
        longjmp(before, how);
    return 0;
}

static void *thread(void *argument) {
    return (void *)(integers(1, 2, 3, 4, 5, 6, 7, (long)argument));
}

KEPT long starting(void) {
    work();
    pthread_t other;
    void *result;
    pthread_create(&other, NULL, thread, (void *)8L);
    pthread_join(other, &result);
    return (long)result;
}

KEPT int forking(void) {
    work();
    pid_t child = fork();
    if (child == 0)
        _exit((int)(integers(1, 1, 1, 1, 1, 1, 1, 1) & 0xff));
    int status;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}

KEPT int asking(void) {
    work();
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    return gettid() == getpid() && CPU_ISSET(sched_getcpu(), &set);
}

KEPT int asking_the_kernel(void) {
    work();
    return syscall(SYS_gettid) == getpid();
}

KEPT void naming(void) {
    work();
    pthread_setname_np(pthread_self(), "by itself");
}

KEPT int changing_user(void) {
    work();
    return setuid(getuid());
}

static volatile sig_atomic_t signals;

static void handle(int signal) {
    (void)signal;
    signals++;
}

KEPT int raising(void) {
    int seen = signals;
    work();
    raise(SIGUSR1);
    return signals - seen;
}

KEPT int sending(void) {
    int seen = signals;
    work();
    kill(getpid(), SIGUSR1);
    return signals - seen;
}

KEPT int sending_to_itself(void) {
    int seen = signals;
    work();
    pthread_kill(pthread_self(), SIGUSR1);
    return signals - seen;
}

KEPT int waiting(void) {
    int seen = signals;
    // A repeating timer, as the first signal may come before the pause.
    struct itimerval soon = {{0, 20000}, {0, 20000}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &soon, NULL);
    work();
    pause();
    setitimer(ITIMER_REAL, &never, NULL);
    return signals > seen;
}

KEPT void closing(int file) {
    for (int i = 0; i < ROUNDS / 4; i++)
        work();
    close(file);
}

// A file that the child closes stays open here.
static int is_open_after_vfork(void) {
    int file = open("/dev/null", O_RDONLY);
    pid_t child = vfork();
    if (child == 0) {
        closing(file);
        _exit(3);
    }
    int status;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status) == 3 && close(file) == 0;
}

KEPT void blocking(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    work();
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

KEPT void unblocking(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    work();
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

static void cleaned(void *what) { puts(what); }

KEPT void ending(void) {
    work();
    pthread_exit("ended away");
}

static void *ends(void *unused) {
    pthread_cleanup_push(cleaned, "cleaned up");
    for (int i = 0; i < ROUNDS; i++)
        integers(1, 2, 3, 4, 5, 6, 7, 8);
    ending();
    pthread_cleanup_pop(0);
    return unused;
}

static void *many(void *argument) {
    long sum = 0;
    for (int i = 0; i < ROUNDS; i++)
        sum += integers(i, 2, 3, 4, 5, 6, 7, (long)argument);
    return (void *)sum;
}

int main(void) {
    // As nginx does.
    clearenv();
    double sum = 0;
    for (int i = 0; i < ROUNDS; i++) {
        sum += (double)integers(i, i + 1, i + 2, i + 3, i + 4, i + 5, i + 6, i + 7);
        sum += floats(i, 1.5f, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, i);
        sum += (double)extended(i, 3);
        struct wide from = {{i, 2, 3, 4, 5}};
        sum += structure(from, i).values[4];
        __m128i both = vector(_mm_set_epi32(i, 1, 2, 3), _mm_set1_epi32(i));
        sum += _mm_cvtsi128_si32(both);
        sum += arguments("%d %s %.3f", i, "text", i / 3.0);
        errno = 0;
        sum += failing() + errno;
        errno = 7;
        integers(1, 1, 1, 1, 1, 1, 1, 1);
        sum += errno;
        sum += storage() == &own;
        sum += nested(3);
        int how = setjmp(before);
        if (how < 2)
            jumping(how + 1);
        sum += how;
        sum += asking();
        sum += asking_the_kernel();
    }
    printf("sum %.10g, own %d\n", sum, own);
    signal(SIGUSR1, handle);
    signal(SIGALRM, handle);
    int raised = 0, started = 0, forked = 0, open_after = 0;
    for (int i = 0; i < ROUNDS; i++)
        raised += raising();
    for (int i = 0; i < 60; i++) {
        started += starting() == 362;
        forked += forking();
        raised += sending() + sending_to_itself();
        open_after += is_open_after_vfork();
    }
    printf("raised %d, started %d, forked %d, open %d\n", raised, started, forked, open_after);
    char name[16];
    naming();
    prctl(PR_GET_NAME, name);
    printf("called %s, waited for %d, changed %d\n", name, waiting(), changing_user());
    for (int i = 0; i < 60; i++) {
        int seen = signals;
        blocking();
        raise(SIGUSR1);
        if (signals != seen)
            puts("was not blocked");
        unblocking();
        if (signals != seen + 1)
            puts("was not let in");
    }
    pthread_t threads[8];
    for (long i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, many, (void *)i);
    for (int i = 0; i < 8; i++) {
        void *result;
        pthread_join(threads[i], &result);
        printf("thread %d: %ld\n", i, (long)result);
    }
    void *result;
    pthread_create(&threads[0], NULL, ends, NULL);
    pthread_join(threads[0], &result);
    puts(result);
    // Children of a process that moves calls move theirs, too.
    fflush(stdout);
    if (fork() == 0) {
        printf("child: %ld\n", (long)many((void *)3L));
        exit(0);
    }
    wait(NULL);
    return 0;
}
