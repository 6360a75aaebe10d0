// Handles sixty requests, of three calls each: few enough that all are in a ring of records.
#include <stdio.h>

__attribute__((noinline, noclone, noipa)) long work(long n) {
    volatile long sum = 0;
    for (long i = 0; i < n; i++)
        sum += i;
    return sum;
}

__attribute__((noinline, noclone, noipa)) long handle(long n) {
    long sum = 0;
    for (int call = 0; call < 3; call++)
        sum += work(1000 + n);
    return sum;
}

int main(void) {
    long sum = 0;
    for (int request = 0; request < 60; request++)
        sum += handle(request);
    printf("%ld\n", sum);
    return 7;
}
