// Processes that filter their system calls, then fork, filter again, and drop rights. The filter
// ends a process that starts threads, or chooses CPUs: Dimmer does neither from then on.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "early.h"
#include "ends.h"
#include "work.h"

static void works(int calls) {
    for (int i = 0; i < calls; i++) work(200000);
}

// Returns how far it came.
static int filter_calls(int flags) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ENDS(SYS_prctl), ENDS(SYS_sched_setaffinity), ENDS(SYS_membarrier), ENDS(SYS_clone3),
        // Threads, but not processes.
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_VM, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 1;
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program)) return 2;
    works(20);
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program)) return 3;
    setfsuid(getuid());
    return 4;
}

static atomic_int is_over;

static void *goes_on(void *unused) {
    while (!is_over) work(200000);
    return unused;
}

// Whether a child process can do its work.
static int has_child(void) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        works(5);
        setfsuid(getuid());
        _exit(6);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return status;
}

static void alone(void) {
    works(20);
    printf("  filtered: %d\n", filter_calls(0));
    works(20);
    printf("  child: %x\n", has_child());
}

static void beside_another(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, goes_on, NULL);
    works(20);
    printf("  filtered: %d\n", filter_calls(SECCOMP_FILTER_FLAG_TSYNC));
    works(20);
    is_over = 1;
    pthread_join(thread, NULL);
    printf("  child: %x\n", has_child());
}

static void run(const char *name, void (*way)(void)) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        // Ends it by a signal if it does not end.
        alarm(200);
        early();
        way();
        fflush(stdout);
        _exit(9);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("%s: status %x\n", name, status);
}

int main(void) {
    alarm(1000);
    run("alone", alone);
    run("beside another thread", beside_another);
    run("once more", beside_another);
    return 0;
}
