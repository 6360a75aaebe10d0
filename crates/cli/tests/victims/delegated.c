// Calls of leaf functions with all kinds of arguments and results, from threads, with signals that
// come while a call is delegated, and handlers that are left in every way. The output must not
// depend on it.
#define _GNU_SOURCE
#include <fenv.h>
#include <immintrin.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "early.h"

#define KEPT __attribute__((noinline, noclone, noipa))

// Fewer rounds on an emulated processor.
#ifndef ROUNDS
#define ROUNDS 500
#endif

KEPT long six(long a, long b, long c, long d, long e, long f) { return a + 3 * b ^ 5 * c - d * e + f; }

KEPT double fused(double a, float b, double c) { return a * b + c / 3; }

KEPT unsigned __int128 wide(uint64_t a, uint64_t b) { return (unsigned __int128)a * b; }

KEPT void sums(const unsigned char *from, int n, uint64_t *to) {
    uint64_t sum = 0, buffer[16] = {0};
    for (int i = 0; i < n; i++)
        buffer[i & 15] += from[i] * (uint64_t)i;
    for (int i = 0; i < 16; i++)
        sum = sum * 31 + buffer[i];
    *to = sum;
}

__attribute__((target("avx2"))) KEPT __m256i doubled(__m256i what, __m256i more) { return _mm256_add_epi32(what, _mm256_slli_epi32(more, 1)); }

__attribute__((target("avx512f"))) KEPT __m512i mixed(__m512i what, __m512i more) { return _mm512_xor_si512(what, _mm512_slli_epi32(more, 3)); }

KEPT double third(double what) { return what / 3; }

// Not a leaf function: it has arguments on the stack.
KEPT long nine(long a, long b, long c, long d, long e, long f, long g, long h, long i) { return a - b + c - d + e - f + g - h + i; }

__attribute__((target("avx2"))) KEPT void vectors(void) {
    __m256i sum = _mm256_setzero_si256();
    for (int i = 0; i < ROUNDS; i++)
        sum = doubled(sum, _mm256_set1_epi32(i));
    int parts[8];
    memcpy(parts, &sum, 32);
    printf("vectors %x %x\n", parts[0], parts[7]);
}

__attribute__((target("avx512f"))) KEPT void wider_vectors(void) {
    __m512i sum = _mm512_setzero_si512();
    for (int i = 0; i < ROUNDS; i++)
        sum = mixed(sum, _mm512_set1_epi32(i));
    int parts[16];
    memcpy(parts, &sum, 64);
    printf("wider vectors %x %x\n", parts[0], parts[15]);
}

static void *calls(void *which) {
    unsigned char bytes[256];
    uint64_t sum = 0, one;
    for (int i = 0; i < 256; i++)
        bytes[i] = i * 7 + (int)(intptr_t)which;
    for (int i = 0; i < ROUNDS; i++) {
        sums(bytes, i & 255, &one);
        sum += one ^ (uint64_t)six(i, 2, 3, i, 5, 6) ^ (uint64_t)(wide(sum, one) >> 64);
        sum += (uint64_t)(int64_t)fused(i, 1.5f, 2) + (uint64_t)nine(1, 2, 3, 4, 5, 6, 7, 8, i);
    }
    return (void *)sum;
}

// Takes longer than the time to the next signal.
KEPT long is_long(long n, volatile long *sink) {
    for (long i = 0; i < n; i++)
        *sink += i;
    return n;
}

static volatile long sink, handled;
static sigjmp_buf out;
static volatile sig_atomic_t jumps, forks;

// Sends one signal. Only the code that it interrupts asks for the next: with a repeating timer, a
// slow machine would do nothing but handle signals.
static void ask_for_signal(void) {
    struct itimerval soon = {{0, 0}, {0, 300}};
    setitimer(ITIMER_REAL, &soon, NULL);
}

static void handler(int signal) {
    (void)signal;
    long own = 0;
    if (is_long(10, &own) != 10 || own != 45)
        _exit(9);
    handled++;
    if (forks) {
        forks = 0;
        pid_t child = fork();
        if (child == 0)
            return;
        int status;
        waitpid(child, &status, 0);
        printf("child ended with %d\n", WEXITSTATUS(status));
    }
    if (jumps)
        siglongjmp(out, 1);
}

static void *waits(void *unused) {
    (void)unused;
    int before;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before);
    long own = 0;
    for (;;)
        is_long(100000, &own);
    return NULL;
}

int main(void) {
    early();
    pthread_t threads[4];
    for (intptr_t i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, calls, (void *)i);
    for (int i = 0; i < 4; i++) {
        void *sum;
        pthread_join(threads[i], &sum);
        printf("thread %d: %p\n", i, sum);
    }
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2"))
        vectors();
    if (__builtin_cpu_supports("avx512f"))
        wider_vectors();
    // The caller's rounding mode, and flags that it sees afterwards.
    int rounding[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD};
    for (int i = 0; i < 3; i++) {
        fesetround(rounding[i]);
        feclearexcept(FE_ALL_EXCEPT);
        double exact = third(3), rounded = third(1);
        printf("%a %a %d\n", exact, rounded, fetestexcept(FE_INEXACT) != 0);
    }
    fesetround(FE_TONEAREST);
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGALRM, &action, NULL);
    for (int asked = -1; handled < 100;) {
        if (asked != handled) {
            asked = handled;
            ask_for_signal();
        }
        is_long(20000, &sink);
    }
    volatile int jumped = 0;
    while (jumped < 100) {
        if (sigsetjmp(out, 1) == 0) {
            jumps = 1;
            ask_for_signal();
            for (;;)
                is_long(20000, &sink);
        }
        jumps = 0;
        jumped++;
        // Nothing is written any more once the call has been left.
        long before = sink;
        usleep(10);
        if (before != sink)
            puts("still under way");
    }
    fflush(stdout);
    pid_t own = getpid();
    forks = 1;
    ask_for_signal();
    long lengths = 0;
    while (forks)
        lengths += is_long(20000, &sink) - 20000;
    if (getpid() != own)
        _exit(is_long(7, &sink) + lengths);
    printf("jumped %d, %ld\n", jumped, lengths);
    pthread_t thread;
    pthread_create(&thread, NULL, waits, NULL);
    usleep(20000);
    pthread_cancel(thread);
    void *result;
    pthread_join(thread, &result);
    puts(result == PTHREAD_CANCELED ? "cancelled" : "ended");
    return 0;
}
