// A fork within a hooked function: parent and child both return from it and go on. Before it, calls
// for a tenth of a second: a worker on another core begins to look for them meanwhile.
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

__attribute__((noinline)) long step(long n) {
    long sum = 0;
    for (long i = 0; i < n; i++) sum += i ^ sum;
    __asm__ volatile("");
    return sum;
}

__attribute__((noinline)) int forks(void) {
    int child = fork();
    __asm__ volatile("");
    return child;
}

__attribute__((noinline)) long early(long n) {
    __asm__ volatile("" : "+r"(n));
    return n + 1;
}

static double now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

int main(void) {
    for (double end = now() + 0.1; now() < end;) early(1);
    long sum = 0;
    for (int i = 0; i < 100; i++) sum += step(i);
    int child = forks();
    for (int i = 0; i < 50; i++) sum += step(i);
    if (child == 0) {
        printf("child %ld\n", sum);
        fflush(stdout);
        return 3;
    }
    int status;
    waitpid(child, &status, 0);
    printf("parent %ld, child ended with %d\n", sum, WEXITSTATUS(status));
    return 0;
}
