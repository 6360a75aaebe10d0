/* A function that always ends by jumping into another one: slowly at first, so that every call is
   timed, then so often that few are. */
#include <stdio.h>
#include <time.h>

long starts(long number);

__asm__(".text\n"
        ".type ends, @function\n"
        "ends:\n"
        ".cfi_startproc\n"
        "add $7, %rdi\n"
        "lea (%rdi, %rdi), %rax\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size ends, . - ends\n"
        ".globl starts\n"
        ".type starts, @function\n"
        "starts:\n"
        ".cfi_startproc\n"
        "xor $1, %rdi\n"
        "add $1, %rdi\n"
        "jmp ends\n"
        ".cfi_endproc\n"
        ".size starts, . - starts\n");

int main(void)
{
    const struct timespec pause = {0, 200000};
    long sum = 0;
    for (long number = 0; number < 300; number++) {
        sum += starts(number);
        nanosleep(&pause, NULL);
    }
    for (long number = 0; number < 30000000; number++)
        sum += starts(number);
    printf("%ld\n", sum);
    return 0;
}
