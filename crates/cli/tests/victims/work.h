// A function whose calls take as long as the caller says.
__attribute__((noinline, noclone)) long work(long times) {
    volatile long sum = 0;
    for (long i = 0; i < times; i++) sum += i;
    return sum;
}
