// A fork within a hooked function: parent and child both return from it and go on.
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "early.h"

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

int main(void) {
    early();
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
