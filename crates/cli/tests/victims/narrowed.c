// A little 512-bit work from time to time in scalar code, or narrower work if the processor shows
// no such instructions, for more than a second of CPU time. Prints which code it was given.
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double numbers[64];
static volatile int is_odd;

__attribute__((noinline, target("avx512f"))) static void wide(void) {
    __m512d sum = _mm512_loadu_pd(numbers);
    for (int i = 0; i < 200; i++)
        for (int j = 0; j < 64; j += 8)
            sum = _mm512_fmadd_pd(sum, _mm512_loadu_pd(numbers + j), sum);
    _mm512_storeu_pd(numbers, sum);
    // Makes this a non-leaf function, so that its callers are searched for.
    if (is_odd)
        puts("odd");
}

__attribute__((noinline)) static void narrow(void) {
    for (int i = 0; i < 1600; i++)
        numbers[i % 64] += numbers[(i + 1) % 64] * 0.5;
}

// Called in both forms.
__attribute__((noinline)) void work(int has_wide) {
    if (has_wide)
        wide();
    else
        narrow();
}

int main(void) {
    int has_wide = __builtin_cpu_supports("avx512f");
    unsigned long hash = 1;
    while (clock() < 3 * CLOCKS_PER_SEC / 2) {
        work(has_wide);
        for (int i = 0; i < 100000; i++)
            hash = hash * 6364136223846793005 + 1;
    }
    is_odd = hash == 0;
    printf("%s\n", getenv("GLIBC_TUNABLES") ? "narrow" : "own");
    return 0;
}
