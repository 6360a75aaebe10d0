// A leaf function that faults, after calls that do not: the program ends by the signal of the
// fault. With an argument, it has a handler for the signal, and goes on.
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>

#define KEPT __attribute__((noinline, noclone, noipa))

KEPT void writes(volatile int *to) {
    for (int i = 0; i < 100; i++)
        *to = i;
}

static sigjmp_buf out;

static void jumps(int signal) {
    (void)signal;
    siglongjmp(out, 1);
}

int main(int count, char **arguments) {
    (void)arguments;
    int own;
    for (int i = 0; i < 100; i++)
        writes(&own);
    puts("begun");
    fflush(stdout);
    if (count > 1)
        signal(SIGSEGV, jumps);
    if (sigsetjmp(out, 1) == 0)
        writes((volatile int *)16);
    puts("caught");
    for (int i = 0; i < 100; i++)
        writes(&own);
    return 5;
}
