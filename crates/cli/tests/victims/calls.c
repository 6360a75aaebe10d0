// Calls of one function by several threads, with arguments in registers, vector registers and on
// the stack.
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

struct wide { long a, b, c, d; };

__attribute__((noinline)) long work(long n) {
    long sum = 0;
    for (long i = 0; i < n; i++) sum += i ^ (sum >> 3);
    __asm__ volatile("");
    return sum;
}

__attribute__((noinline)) struct wide many(long a, long b, long c, long d, long e, long f, long g, long h,
                                           double x, struct wide w) {
    return (struct wide){a + h, b + g + (long)x, c + f + w.d, d + e + work(5)};
}

__attribute__((noinline)) double variadic(int n, ...) {
    va_list list;
    va_start(list, n);
    double sum = 0;
    for (int i = 0; i < n; i++) sum += va_arg(list, double);
    va_end(list);
    __asm__ volatile("");
    return sum;
}

static void *thread(void *unused) {
    long sum = 0;
    for (int i = 0; i < 500; i++) sum += work(i % 7);
    return (void *)sum;
}

int main(void) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], 0, thread, 0);
    long sum = 0;
    for (int i = 0; i < 1000; i++) sum += work(i % 11);
    struct wide w = {1, 2, 3, 4};
    for (int i = 0; i < 100; i++) w = many(i, 2, 3, 4, 5, 6, 7, 8, 2.5, w);
    double total = 0;
    for (int i = 0; i < 100; i++) total += variadic(5, 1.0, 2.5, (double)i, 4.0, 5.0);
    for (int i = 0; i < 3; i++) {
        void *result;
        pthread_join(threads[i], &result);
        sum += (long)result;
    }
    printf("%ld %ld %ld %ld %ld %g\n", sum, w.a, w.b, w.c, w.d, total);
    return 7;
}
