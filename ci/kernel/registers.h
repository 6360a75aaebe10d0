// Wide code of the tests of core specialisation: all sixteen 256-bit registers, and what they must
// hold.
#ifndef REGISTERS_H
#define REGISTERS_H

#include <stdint.h>
#include <string.h>

struct registers {
    uint8_t bytes[16][32];
};

#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define LOAD(i) "vmovdqu " #i "*32(%[in]), %%ymm" #i "\n\t"
#define STORE_HALF(i) "movdqu %%xmm" #i ", " #i "*32(%[halfway])\n\t"
#define STORE(i) "vmovdqu %%ymm" #i ", " #i "*32(%[out])\n\t"
#define LOST                                                                                                           \
    "rax", "rcx", "rdx", "rsi", "rdi", "r10", "r11", "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5",   \
        "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"

// Loads all registers, makes a system call, spins, stores the lower halves by code that is not
// wide, makes another call, and stores all. The calls are of the kind that has three arguments; one
// that ends phases is enough.
__attribute__((noinline)) static void hold(const struct registers *in, struct registers *halfway, struct registers *out,
                                           const long *first, const long *second, long spins) {
    asm volatile(EACH(LOAD) "mov 0(%[first]), %%rax\n\t"
                            "mov 8(%[first]), %%rdi\n\t"
                            "mov 16(%[first]), %%rsi\n\t"
                            "mov 24(%[first]), %%rdx\n\t"
                            "syscall\n\t"
                            "mov %[spins], %%r10\n\t"
                            "1: test %%r10, %%r10\n\t"
                            "jz 2f\n\t"
                            "dec %%r10\n\t"
                            "jmp 1b\n\t"
                            "2:\n\t" EACH(STORE_HALF) "mov 0(%[second]), %%rax\n\t"
                                                      "mov 8(%[second]), %%rdi\n\t"
                                                      "mov 16(%[second]), %%rsi\n\t"
                                                      "mov 24(%[second]), %%rdx\n\t"
                                                      "syscall\n\t" EACH(STORE) "vzeroupper\n\t"
                 :
                 : [in] "r"(in), [halfway] "r"(halfway), [out] "r"(out), [first] "r"(first), [second] "r"(second),
                   [spins] "r"(spins)
                 : LOST);
}

static inline void fill(struct registers *registers, unsigned seed) {
    for (unsigned i = 0; i < 16; i++)
        for (unsigned j = 0; j < 32; j++)
            registers->bytes[i][j] = seed * 37 + i * 16 + j * 3 + 1;
}

// How many registers differ between these bytes.
static inline unsigned wrong(const struct registers *one, const struct registers *other, unsigned from, unsigned to) {
    unsigned number = 0;
    for (unsigned i = 0; i < 16; i++)
        number += memcmp(one->bytes[i] + from, other->bytes[i] + from, to - from) != 0;
    return number;
}

static inline void wide_instruction(void) { asm volatile("vpaddd %%ymm0, %%ymm1, %%ymm2\n\tvzeroupper" ::: "xmm2"); }

static inline uint64_t xcr0(void) {
    uint32_t low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low | (uint64_t)high << 32;
}

// The time stamp, and the processor on which it was read, without a system call.
static inline uint64_t stamp(unsigned *processor) {
    uint32_t low, high, number;
    asm volatile("rdtscp" : "=a"(low), "=d"(high), "=c"(number));
    *processor = number & 0xfff;
    return low | (uint64_t)high << 32;
}

#endif
