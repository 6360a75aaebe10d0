// Sections that begin and end with functions, an exact number of times: a lock that is a flag under
// a mutex, as CPython's, and functions that call themselves, are left by jumps, cancellation and the
// end of a thread, are called by signal handlers, and fork.
//
// With a path as argument: takes the lock until the file there has the second argument, releases it,
// and waits until the file has the third one. Likewise in a function, if there is a fourth argument.
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KEPT __attribute__((noinline, noclone, noipa))

// Room for a jump at the entry of a function that calls another one at once.
#define ROOM __asm__ volatile("nopl 0(%rax, %rax)")

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t is_free = PTHREAD_COND_INITIALIZER;
static int is_taken;
static atomic_int waiting;
// A boosted mutex would set the clock before the section does.
static int is_without_mutex;

KEPT void take(void) {
    if (is_without_mutex) {
        is_taken = 1;
        return;
    }
    pthread_mutex_lock(&mutex);
    while (is_taken) {
        waiting = 1;
        pthread_cond_wait(&is_free, &mutex);
    }
    is_taken = 1;
    pthread_mutex_unlock(&mutex);
}

KEPT void give(void) {
    if (is_without_mutex) {
        is_taken = 0;
        return;
    }
    pthread_mutex_lock(&mutex);
    is_taken = 0;
    pthread_cond_signal(&is_free);
    pthread_mutex_unlock(&mutex);
}

// Calls itself, and returns how often that was.
KEPT int recurse(int depth) {
    return depth ? 1 + recurse(depth - 1) : 0;
}

static jmp_buf place;

KEPT void maybe_jump(int is_left) {
    if (is_left)
        longjmp(place, 1);
    is_taken = is_taken;
}

KEPT void be_interrupted(int number) {
    ROOM;
    raise(number);
    is_taken = is_taken;
}

static volatile int handled;

static void handle(int number) {
    handled += number ? recurse(3) : 0;
}

KEPT void *wait_forever(void *unused) {
    waiting = 1;
    for (;;)
        pause();
    return unused;
}

KEPT void *take_and_give(void *unused) {
    ROOM;
    take();
    give();
    return unused;
}

KEPT void *take_and_end(void *unused) {
    ROOM;
    take();
    pthread_exit(unused);
}

KEPT int fork_inside(void) {
    ROOM;
    take();
    pid_t child = fork();
    if (child < 0)
        exit(8);
    give();
    return child;
}

static void join(pthread_t thread) {
    if (pthread_join(thread, NULL))
        exit(7);
}

static pthread_t start(void *(*run)(void *)) {
    pthread_t thread;
    waiting = 0;
    if (pthread_create(&thread, NULL, run, NULL))
        exit(6);
    return thread;
}

// Waits until the file has this word, for a minute.
static void await(const char *path, const char *word) {
    for (int turn = 0; turn < 60000; ++turn) {
        char text[64] = "";
        FILE *file = fopen(path, "r");
        if (file && fscanf(file, "%63s", text) == 1 && !strcmp(text, word)) {
            fclose(file);
            printf("%s\n", word);
            return;
        }
        if (file)
            fclose(file);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    exit(5);
}

KEPT void await_inside(char **words) {
    await(words[1], words[2]);
    is_taken = 0;
}

int main(int count, char **words) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count > 4) {
        await_inside(words);
        await(words[1], words[3]);
        return 0;
    }
    if (count > 3) {
        is_without_mutex = 1;
        take();
        await(words[1], words[2]);
        give();
        await(words[1], words[3]);
        return 0;
    }
    // The lock: 100 times alone, once while another thread holds it.
    for (int turn = 0; turn < 100; ++turn)
        take_and_give(NULL);
    take();
    pthread_t thread = start(take_and_give);
    while (!waiting)
        ;
    give();
    join(thread);
    // A thread ends with it.
    join(start(take_and_end));
    is_taken = 0;
    printf("recursion: %d\n", recurse(10) + recurse(20));
    // Left by a jump, and then not, twice.
    for (volatile int turn = 0; turn < 4; ++turn)
        if (!setjmp(place))
            maybe_jump(turn % 2 == 0);
    // A handler on the thread's stack, and on one of its own.
    struct sigaction action = {.sa_handler = handle};
    sigaction(SIGUSR1, &action, NULL);
    be_interrupted(SIGUSR1);
    static char stack[1 << 16];
    sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR2, &action, NULL);
    be_interrupted(SIGUSR2);
    printf("handled: %d\n", handled);
    // Cancelled.
    thread = start(wait_forever);
    while (!waiting)
        ;
    pthread_cancel(thread);
    join(thread);
    // A child is in no section when it begins, and then takes the lock once.
    int child = fork_inside();
    if (!child) {
        take_and_give(NULL);
        _exit(4);
    }
    int status;
    waitpid(child, &status, 0);
    printf("child: %d\n", WEXITSTATUS(status));
    return 3;
}
