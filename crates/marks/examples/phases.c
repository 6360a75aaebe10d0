/*
 * The example of paper 004, section 4.1: a program of two phases, with a mark in each. Prints what
 * it computes, and on standard error on which CPU each phase ran.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>

#include "swp.h"

enum { ROUNDS = 2, STEPS = 100000, CELLS = 1 << 16 };

static uint32_t cells[CELLS];

static uint32_t compute(uint32_t number) {
    SWP_MARK;
    fprintf(stderr, "compute on cpu %d\n", sched_getcpu());
    for (int i = 0; i < STEPS; i++) {
        number = number * 1664525 + 1013904223;
    }
    return number;
}

static uint32_t chase(uint32_t place) {
    SWP_MARK;
    fprintf(stderr, "chase on cpu %d\n", sched_getcpu());
    for (int i = 0; i < STEPS; i++) {
        place = cells[place % CELLS];
    }
    return place;
}

int main(void) {
    uint32_t number = 1;
    for (uint32_t i = 0; i < CELLS; i++) {
        cells[i] = i * 40503 + 7;
    }
    swp_init();
    for (int round = 0; round < ROUNDS; round++) {
        number = compute(number);
        printf("computed %u\n", number);
        number = chase(number);
        printf("chased %u\n", number);
    }
    swp_deinit();
    fprintf(stderr, "end on cpu %d\n", sched_getcpu());
    return 0;
}
