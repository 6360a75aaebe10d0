// Installs a filter that lets programs start and write, but ends the process if it makes or renames
// files, writes them at an offset, or asks for another process's memory, events or limits on files.
// Then executes itself, which works, takes a lock, and ends with status 7. The first argument says
// how: `exec`, `spawn`, or `raw`, by the bare system call with the environment as it is.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ends.h"

extern char **environ;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

__attribute__((noinline)) double work(double x) {
    for (volatile int i = 0; i < 10; i++) x = x * 1.5 + 1;
    return x;
}

static int restrict_calls(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ENDS(SYS_pwrite64), ENDS(SYS_fstatfs), ENDS(SYS_rename), ENDS(SYS_perf_event_open),
        ENDS(SYS_process_vm_readv), ENDS(SYS_prctl), ENDS(SYS_ftruncate), ENDS(SYS_flock),
        // Files that are made.
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_CREAT, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int count, char **arguments) {
    const char *how = count > 1 ? arguments[1] : "";
    if (!*how) {
        work(1);
        pthread_mutex_lock(&mutex);
        pthread_mutex_unlock(&mutex);
        puts("worked");
        return 7;
    }
    char *words[] = {arguments[0], NULL};
    if (restrict_calls()) return 1;
    if (!strcmp(how, "spawn")) {
        pid_t child;
        int status = 0;
        if (posix_spawn(&child, arguments[0], NULL, NULL, words, environ)) return 2;
        waitpid(child, &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
    }
    if (!strcmp(how, "raw")) {
        long result;
        __asm__ volatile("syscall" : "=a"(result)
                         : "a"(SYS_execve), "D"(arguments[0]), "S"(words), "d"(environ)
                         : "rcx", "r11", "memory");
        return 4;
    }
    execv(arguments[0], words);
    return 5;
}
