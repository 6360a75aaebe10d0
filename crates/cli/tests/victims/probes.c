// Asks in several ways what the kernel has for restricting system calls, and tries what fails. Then
// it starts threads, which are seen as before.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((noinline)) double work(double x) {
    for (volatile int i = 0; i < 10; i++) x = x * 1.5 + 1;
    return x;
}

static void *run(void *unused) {
    for (int i = 0; i < 10; i++) work(1);
    return unused;
}

int main(void) {
    struct sock_fprog none = {0, NULL};
    unsigned action = SECCOMP_RET_KILL_PROCESS;
    work(1);
    if (prctl(PR_GET_SECCOMP) < 0) return 1;
    if (!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL) || errno != EFAULT) return 2;
    if (!syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, NULL) || errno != EINVAL) return 3;
    if (!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 1, NULL) || errno != EFAULT) return 4;
    syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action);
    // These could succeed, by what the library sees.
    if (!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &none) || errno != EINVAL) return 5;
    if (!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &none) || errno != EINVAL) return 6;
    if (prctl(PR_SET_TSC, PR_TSC_ENABLE, 0, 0, 0)) return 7;
    pthread_t thread;
    for (int i = 0; i < 3; i++) {
        pthread_create(&thread, NULL, run, NULL);
        pthread_join(thread, NULL);
    }
    puts("worked");
    return 9;
}
