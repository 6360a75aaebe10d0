// Frames that are left by longjmp, from several depths, and a backtrace through them.
#include <execinfo.h>
#include <setjmp.h>
#include <stdio.h>

static jmp_buf out;
static volatile long calls;

__attribute__((noinline)) long jumper(long depth) {
    char room[100];
    calls++;
    room[depth % 100] = (char)depth;
    if (depth == 0) longjmp(out, 3);
    return jumper(depth - 1) + room[depth % 100];
}

__attribute__((noinline)) int deep(int depth, void **frames) {
    if (depth == 0) return backtrace(frames, 64);
    int found = deep(depth - 1, frames);
    __asm__ volatile("");
    return found;
}

int main(void) {
    volatile int jumped = 0;
    for (volatile int i = 0; i < 3000; i++) {
        if (setjmp(out) == 0)
            jumper(i % 40);
        else
            jumped++;
    }
    void *frames[64];
    int seen = 0, found = deep(10, frames);
    // Through twelve frames of this program to the one that called main.
    for (int i = 0; i < found; i++)
        if ((char *)frames[i] >= (char *)main && (char *)frames[i] < (char *)main + 400) seen = 1;
    printf("%d %ld %d %d\n", jumped, calls, found >= 12, seen);
    return 0;
}
