// Prints its process id, and calls a function until it gets input that tells it to end, or for a
// minute.
#include <poll.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

// Takes longer than any move there and back.
__attribute__((noinline, noclone, noipa)) long kept(void) {
    volatile long sum = 0;
    for (long i = 0; i < 400000; i++)
        sum += i;
    return sum;
}

int main(void) {
    printf("%d\n", (int)getpid());
    fflush(stdout);
    struct pollfd input = {.fd = 0, .events = POLLIN};
    for (time_t end = time(NULL) + 60; time(NULL) < end && poll(&input, 1, 0) == 0;)
        kept();
    return 0;
}
