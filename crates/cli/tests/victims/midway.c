/* Functions that others enter in the middle, by a jump to a place that their own start leads to as
   well, so that no hook can be there. `leader` can be hooked instead; `flagged` cannot, because it
   takes condition flags from its caller. Their starts are called only with many arguments, and
   their wide instructions never run. */
#include <stdio.h>

long leader(long number);
long flagged(long number);
long entered(long number);
long hidden(long number);

#define WIDE(NAME)                        \
    ".globl " NAME "\n"                   \
    ".type " NAME ", @function\n"         \
    NAME ":\n"                            \
    ".cfi_startproc\n"                    \
    "vpxor %ymm0, %ymm0, %ymm0\n"         \
    "vpxor %ymm1, %ymm1, %ymm1\n"         \
    ".L" NAME ":\n"                       \
    "mov %rdi, %rax\n"                    \
    "add %rdi, %rax\n"                    \
    "ret\n"                               \
    ".cfi_endproc\n"                      \
    ".size " NAME ", . - " NAME "\n"

#define JUMPS(NAME, FIRST, TO)            \
    ".globl " NAME "\n"                   \
    ".type " NAME ", @function\n"         \
    NAME ":\n"                            \
    ".cfi_startproc\n"                    \
    FIRST                                 \
    "add $1, %rdi\n"                      \
    "cmp $3, %rdi\n"                      \
    "jae .L" TO "\n"                      \
    "mov %rdi, %rax\n"                    \
    "ret\n"                               \
    ".cfi_endproc\n"                      \
    ".size " NAME ", . - " NAME "\n"

__asm__(".text\n"
        WIDE("entered") WIDE("hidden")
        JUMPS("leader", "", "entered") JUMPS("flagged", "adc $0, %rdi\n", "hidden"));

int main(int arguments, char **argument)
{
    long sum = 0;
    (void)argument;
    if (arguments > 9)
        sum += entered(1) + hidden(1);
    for (long number = 0; number < 1000 && arguments == 1; number++)
        sum += leader(number);
    for (long number = 0; number < 10; number++)
        sum += flagged(number) > 0;
    printf("%ld\n", sum);
    return 0;
}
