// A signal handler that calls a hooked function while hooked functions run, also on its own stack,
// and a handler that jumps out of them.
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>

#include "early.h"

static volatile sig_atomic_t handled;
static volatile long sink;
static sigjmp_buf out;
static volatile sig_atomic_t jumps;

__attribute__((noinline)) long busy(long n) {
    long sum = 0;
    for (long i = 0; i < n; i++) sum += i * i ^ sum;
    __asm__ volatile("");
    return sum;
}

// Sends one signal. Only the code that it interrupts asks for the next: with a repeating timer, a
// slow machine would do nothing but handle signals.
static void ask_for_signal(void) {
    struct itimerval soon = {{0, 0}, {0, 300}};
    setitimer(ITIMER_REAL, &soon, 0);
}

static void handler(int signal) {
    sink += busy(20);
    handled++;
}

static void jumper(int signal) {
    sink += busy(3);
    if (jumps) siglongjmp(out, 1);
}

int main(void) {
    early();
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};
    sigaltstack(&stack, 0);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK | SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    long long sum = 0;
    for (int asked = -1; handled < 500;) {
        if (asked != handled) {
            asked = handled;
            ask_for_signal();
        }
        for (int i = 0; i < 100; i++) sum ^= busy(i);
    }
    action.sa_handler = jumper;
    action.sa_flags = 0;
    sigaction(SIGALRM, &action, 0);
    volatile int jumped = 0;
    while (jumped < 300) {
        if (sigsetjmp(out, 1) == 0) {
            jumps = 1;
            ask_for_signal();
            for (;;) sum ^= busy(50);
        } else {
            jumps = 0;
            jumped++;
        }
    }
    printf("done %d %ld\n", jumped, busy(1000));
    return 0;
}
