/* A function that is entered only in the middle, by a jump from another one, as assembly does. Its
   wide instructions are before that place and never run. */
#include <stdio.h>

long outer(long number, long more);

__asm__(".text\n"
        ".type entered_inside, @function\n"
        "entered_inside:\n"
        ".cfi_startproc\n"
        "vpxor %ymm0, %ymm0, %ymm0\n"
        "vpxor %ymm1, %ymm1, %ymm1\n"
        ".Linside:\n"
        "mov %rdi, %rax\n"
        "add %r11, %rax\n" /* Not a register for arguments. */
        "ret\n"
        ".cfi_endproc\n"
        ".size entered_inside, . - entered_inside\n"
        ".globl outer\n"
        ".type outer, @function\n"
        "outer:\n"
        ".cfi_startproc\n"
        "mov %rsi, %r11\n"
        "cmp $3, %rdi\n"
        "jae .Linside\n"
        "mov %rsi, %rax\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size outer, . - outer\n");

int main(void)
{
    long sum = 0;
    for (long turn = 0; turn < 1000; turn++)
        for (long number = 0; number < 10; number++)
            sum += outer(number, turn);
    printf("%ld\n", sum);
    return 0;
}
