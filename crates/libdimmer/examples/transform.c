/*
 * A program that marks one call, and differs from the plain one by a macro:
 *
 *     main --- DIMMER_EXEC(transform, numbers, n) --- main    the home CPU
 *                \                           /
 *                 transform(numbers, n)                       a dedicated CPU, if the environment
 *                                                             says so
 *
 * The output is always the same. The CPU that it ran on goes to standard error.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dimmer.h"

enum { COUNT = 1000 };

static unsigned cpu(void) {
    unsigned cpu = 0;
    syscall(SYS_getcpu, &cpu, NULL, NULL);
    return cpu;
}

static unsigned ran_on;

static double transform(double *numbers, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        numbers[i] = numbers[i] * 0.5 + 1.0;
        sum += numbers[i];
    }
    ran_on = cpu();
    return sum;
}

int main(void) {
    static double numbers[COUNT];
    double sum = 0;
    for (int i = 0; i < 100; i++) {
        sum = DIMMER_EXEC(transform, numbers, COUNT);
    }
    printf("sum %.9f\n", sum);
    fprintf(stderr, "ran on %u\n", ran_on);
    return 0;
}
