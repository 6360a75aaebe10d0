// Two coroutines that take turns on one stack, which is copied away and back, as greenlets do it.
// They yield within a hooked function.
#include <stdio.h>
#include <string.h>
#include <ucontext.h>

static char stack[1 << 16] __attribute__((aligned(64)));
static char kept[2][sizeof stack];
static ucontext_t turns, coroutines[2];
static int current, ended[2];
static double sums[2];

__attribute__((noinline)) double yields(double x) {
    double y = x * 1.5 + 1;
    swapcontext(&coroutines[current], &turns);
    return y + x;
}

static void first(void) {
    for (int i = 0; i < 2000; i++) sums[0] += yields(i);
    ended[0] = 1;
}

static void second(void) {
    for (int i = 0; i < 3000; i++) sums[1] += yields(1) + yields(2);
    ended[1] = 1;
}

int main(void) {
    for (int i = 0; i < 2; i++) {
        memset(stack, 0, sizeof stack);
        getcontext(&coroutines[i]);
        coroutines[i].uc_stack.ss_sp = stack;
        coroutines[i].uc_stack.ss_size = sizeof stack;
        coroutines[i].uc_link = &turns;
        makecontext(&coroutines[i], i ? second : first, 0);
        memcpy(kept[i], stack, sizeof stack);
    }
    int switches = 0;
    while (!ended[0] || !ended[1]) {
        for (current = 0; current < 2; current++) {
            if (ended[current]) continue;
            memcpy(stack, kept[current], sizeof stack);
            swapcontext(&turns, &coroutines[current]);
            memcpy(kept[current], stack, sizeof stack);
            switches++;
        }
    }
    printf("%d %.0f %.0f\n", switches, sums[0], sums[1]);
}
