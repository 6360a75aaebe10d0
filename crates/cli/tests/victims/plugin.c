// What loads.c loads.
__attribute__((visibility("default"), noinline)) long plugged(long n) {
    long sum = 0;
    for (long i = 0; i < n; i++) sum += i * 3 ^ sum;
    __asm__ volatile("");
    return sum;
}
