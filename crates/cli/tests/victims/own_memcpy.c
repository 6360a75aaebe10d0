// Has its own memcpy with wide code, and the rest of the process is linked to it.
#include <immintrin.h>
#include <stddef.h>
#include <stdio.h>

__attribute__((target("avx2"), optimize("no-tree-loop-distribute-patterns"), noinline))
void *memcpy(void *to, const void *from, size_t length) {
    char *into = to;
    const char *out = from;
    for (; length >= 32; length -= 32, into += 32, out += 32) {
        __m256i part = _mm256_loadu_si256((const void *)out);
        _mm256_storeu_si256((void *)into, _mm256_mullo_epi16(part, _mm256_set1_epi16(1)));
    }
    while (length--) *into++ = *out++;
    return to;
}

int main(void) {
    static char from[20000], to[20000];
    for (size_t i = 0; i < sizeof from; i++) from[i] = (char)(i * 7);
    unsigned sum = 0;
    for (int i = 0; i < 3000; i++) {
        void *(*volatile copy)(void *, const void *, size_t) = memcpy;
        copy(to, from, sizeof from - (size_t)i);
        sum += (unsigned char)to[i];
    }
    printf("%u\n", sum);
    return 3;
}
