// Processes that end with their last thread rather than with main, and one that needs to be alone
// with its thread. All do the same without Dimmer's threads.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "early.h"
#include "work.h"

static void works(int calls) {
    early();
    for (int i = 0; i < calls; i++) work(200000);
}

static void at_exit(void) {
    work(100);
    puts("  exit(3) was called");
    fflush(stdout);
}

static void *goes_on(void *unused) {
    works(200);
    puts("  a thread went on");
    fflush(stdout);
    return unused;
}

static void by_pthread_exit(void) {
    works(20);
    pthread_exit(NULL);
}

static void by_system_call(void) {
    works(20);
    syscall(SYS_exit, 3);
}

static void before_another(void) {
    pthread_t thread;
    works(20);
    pthread_create(&thread, NULL, goes_on, NULL);
    pthread_exit(NULL);
}

static void by_system_call_before_another(void) {
    pthread_t thread;
    works(20);
    pthread_create(&thread, NULL, goes_on, NULL);
    syscall(SYS_exit, 35);
}

static void in_own_namespace(void) {
    works(20);
    int failed = unshare(CLONE_NEWUSER);
    printf("  unshare: %d\n", failed ? errno : 0);
    works(20);
    fflush(stdout);
}

static void run(const char *name, void (*way)(void)) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        // Ends it by a signal if it does not end.
        alarm(200);
        atexit(at_exit);
        way();
        _exit(9);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("%s: status %x\n", name, status);
}

int main(void) {
    alarm(1000);
    run("pthread_exit", by_pthread_exit);
    run("exit(2)", by_system_call);
    run("pthread_exit before another thread", before_another);
    run("exit(2) before another thread", by_system_call_before_another);
    run("unshare", in_own_namespace);
    atexit(at_exit);
    by_pthread_exit();
}
