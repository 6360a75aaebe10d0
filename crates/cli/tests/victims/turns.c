// A program that fills a table and follows it, in turns, with a function that is called a million
// times. Prints what it computes.

#include <stdio.h>

#define MARK __attribute__((noinline, noclone, used))

enum { CELLS = 1 << 13, STEPS = 64 * CELLS, TURNS = 128 };

static unsigned cells[CELLS];

MARK unsigned mix(unsigned value) {
    return (value * 2654435761u) ^ (value >> 15);
}

MARK void fill(unsigned seed) {
    for (int i = 0; i < CELLS; i++) {
        cells[i] = seed = mix(seed + i);
    }
}

MARK unsigned long follow(unsigned long from) {
    for (int i = 0; i < STEPS; i++) {
        from = (from + cells[from % CELLS]) * 31 + i;
    }
    return from;
}

MARK void finish(unsigned long sum) {
    printf("%lu\n", sum);
}

int main(void) {
    unsigned long sum = 1;
    for (int turn = 0; turn < TURNS; turn++) {
        fill(turn);
        sum += follow(sum);
    }
    finish(sum);
    return 5;
}
