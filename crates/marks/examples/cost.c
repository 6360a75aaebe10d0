/*
 * Measures the cost of a mark: the median of some rounds, less that of the same loop without one.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "swp.h"

enum { ROUNDS = 101, TURNS = 200000 };

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int compare(const void *a, const void *b) {
    const double *left = a, *right = b;
    return (*left > *right) - (*left < *right);
}

int main(void) {
    static double took[2][ROUNDS];
    swp_init();
    for (int round = 0; round < ROUNDS; round++) {
        double begin = now_ns();
        for (int i = 0; i < TURNS; i++) {
            __asm__ volatile("" ::: "memory");
        }
        double middle = now_ns();
        for (int i = 0; i < TURNS / 2; i++) {
            SWP_MARK;
            __asm__ volatile("" ::: "memory");
            SWP_MARK;
        }
        took[0][round] = (middle - begin) / TURNS;
        took[1][round] = (now_ns() - middle) / TURNS;
    }
    swp_deinit();
    qsort(took[0], ROUNDS, sizeof(double), compare);
    qsort(took[1], ROUNDS, sizeof(double), compare);
    fprintf(stderr, "%.2f ns\n", took[1][ROUNDS / 2] - took[0][ROUNDS / 2]);
    return 0;
}
