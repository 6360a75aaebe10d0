// Calls hooked functions where time stamps must not be read; with an argument, also in the strict
// mode of seccomp.
#include <linux/seccomp.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((noinline)) double work(double x) {
    for (volatile int i = 0; i < 10; i++) x = x * 1.5 + 1;
    return x;
}

int main(int count, char **arguments) {
    (void)arguments;
    for (int i = 0; i < 100; i++) work(1);
    if (count > 1) {
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) return 1;
    } else if (syscall(SYS_prctl, PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0)) {
        return 2;
    }
    for (int i = 0; i < 20000; i++) work(1);
    if (write(1, "worked\n", 7) != 7) return 3;
    syscall(SYS_exit, 7);
}
