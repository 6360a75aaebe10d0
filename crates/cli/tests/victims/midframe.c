/* A kernel as in dav1d: it takes the address of a label without symbol or unwinding record, and
   later jumps there in the middle of its frame. Exits with 1 if it computed something wrong. */
#include <stdio.h>

long kernel(const long *numbers);

__asm__(
    ".text\n"
    ".p2align 4\n"
    ".globl kernel\n"
    ".type kernel,@function\n"
    "kernel:\n"
    " sub $0x78, %rsp\n"
    " movq $1111, (%rsp)\n"
    " movq $2222, 0x20(%rsp)\n"
    " lea .Lcontinues(%rip), %r8\n"
    " jmp .Lfirst\n"
    ".size kernel, .-kernel\n"
    ".p2align 4\n"
    ".Lfirst:\n"
    " mov (%rdi), %rax\n"
    " jmp *%r8\n"
    ".p2align 4\n"
    ".Lcontinues:\n"
    " movdqu (%rdi), %xmm0\n"
    " paddq %xmm0, %xmm0\n"
    " add (%rsp), %rax\n"
    " add 0x20(%rsp), %rax\n"
    " add $0x78, %rsp\n"
    " ret\n");

int main(void) {
    long numbers[2] = {3, 4};
    int wrong = 0;
    for (int turn = 0; turn < 20000; turn++) {
        wrong += kernel(numbers) != 3336;
    }
    printf("wrong results: %d\n", wrong);
    return wrong != 0;
}
