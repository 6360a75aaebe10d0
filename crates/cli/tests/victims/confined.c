// Starts threads, and forks, after installing a filter that ends the process if it opens files, or
// writes files at an offset.
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ends.h"

__attribute__((noinline)) double work(double x) {
    for (volatile int i = 0; i < 10; i++) x = x * 1.5 + 1;
    return x;
}

static void *run(void *unused) {
    work(1);
    return unused;
}

int main(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ENDS(SYS_open), ENDS(SYS_openat), ENDS(SYS_pwrite64), ENDS(SYS_fstatfs),
        ENDS(SYS_access), ENDS(SYS_rename),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    work(1);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 1;
    pthread_t thread;
    for (int i = 0; i < 3; i++) {
        pthread_create(&thread, 0, run, 0);
        pthread_join(thread, 0);
    }
    if (fork() == 0) _exit(work(1) > 0);
    wait(0);
    puts("worked");
    return 7;
}
