// Takes locks an exact number of times, nested, with waits for a condition, and by functions that
// do not wait or wait until a time. Where a thread has to wait for a lock, its holder keeps the lock
// until that thread sleeps in the kernel.
//
// With a path as argument: holds a lock until the file there has the second argument, and releases
// it; then waits until the file has the third argument. The fourth says what happens in between:
//   killed, parent: it kills itself, or the process that has started it
//   child-killed, child-executes: a child holds the lock, and is killed or executes another program
//   child-left: a child holds the lock, while the first process ends
//   main-ends: another thread holds the lock, and the main thread has ended
//   threads: first, 1100 threads end one after the other without a word to the C library
// With two arguments: takes a lock again and again until the file has the second one meanwhile.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KEPT __attribute__((noinline, noclone, noipa))
enum { TURNS = 10 };

static pthread_mutex_t outer = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t inner = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static atomic_int waiter;
static int is_ready;

// Returns once this thread of the process is in this state.
static void await_state(int thread, char expected) {
    char file[64], state = 0;
    snprintf(file, sizeof file, "/proc/self/task/%d/stat", thread);
    while (state != expected) {
        FILE *stat = fopen(file, "r");
        if (!stat || fscanf(stat, "%*d (%*[^)]) %c", &state) != 1)
            exit(9);
        fclose(stat);
    }
}

static void await_sleep(int thread) {
    await_state(thread, 'S');
}

static pthread_t start(void *(*run)(void *)) {
    pthread_t thread;
    waiter = 0;
    if (pthread_create(&thread, NULL, run, NULL))
        exit(8);
    return thread;
}

KEPT void take_outer(void) {
    pthread_mutex_lock(&outer);
}

KEPT void take_inner(void) {
    pthread_mutex_lock(&inner);
    pthread_mutex_unlock(&inner);
}

KEPT void nest(void) {
    for (int turn = 0; turn < TURNS; ++turn) {
        take_outer();
        take_inner();
        pthread_mutex_unlock(&outer);
    }
}

KEPT int try_lock(void) {
    return pthread_mutex_trylock(&mutex);
}

KEPT int lock_until_past(void) {
    struct timespec past = {0, 0};
    return pthread_mutex_timedlock(&mutex, &past);
}

KEPT void *fail(void *unused) {
    printf("taken: %d %d\n", try_lock() == EBUSY, lock_until_past() == ETIMEDOUT);
    return unused;
}

KEPT void *wait_for_lock(void *unused) {
    waiter = (int)syscall(SYS_gettid);
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
    return unused;
}

KEPT void hold(void) {
    pthread_mutex_lock(&mutex);
    pthread_join(start(fail), NULL);
    pthread_t thread = start(wait_for_lock);
    while (!waiter)
        ;
    await_sleep(waiter);
    pthread_mutex_unlock(&mutex);
    pthread_join(thread, NULL);
    printf("free: %d\n", try_lock());
    pthread_mutex_unlock(&mutex);
}

KEPT void lock_to_wait(void) {
    pthread_mutex_lock(&mutex);
}

KEPT void *wait_for_condition(void *unused) {
    lock_to_wait();
    waiter = (int)syscall(SYS_gettid);
    while (!is_ready)
        pthread_cond_wait(&condition, &mutex);
    pthread_mutex_unlock(&mutex);
    return unused;
}

KEPT void signal_condition(void) {
    pthread_t thread = start(wait_for_condition);
    while (!waiter)
        ;
    await_sleep(waiter);
    pthread_mutex_lock(&mutex);
    is_ready = 1;
    pthread_cond_signal(&condition);
    pthread_mutex_unlock(&mutex);
    pthread_join(thread, NULL);
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
    exit(7);
}

static atomic_int is_over;

KEPT void *take_in_turn(void *unused) {
    while (!is_over) {
        pthread_mutex_lock(&outer);
        pthread_mutex_unlock(&outer);
        nanosleep(&(struct timespec){0, 100000}, NULL);
    }
    return unused;
}

// Holds the lock for 20 ms each time, while another thread waits, until the file has this word in
// the middle of that, for ten seconds.
KEPT void hold_until(const char *path, const char *word) {
    pthread_t thread = start(take_in_turn);
    int is_seen = 0;
    for (int turn = 0; turn < 500 && !is_seen; ++turn) {
        pthread_mutex_lock(&outer);
        nanosleep(&(struct timespec){0, 20000000}, NULL);
        char text[64] = "";
        FILE *file = fopen(path, "r");
        is_seen = file && fscanf(file, "%63s", text) == 1 && !strcmp(text, word);
        if (file)
            fclose(file);
        pthread_mutex_unlock(&outer);
        nanosleep(&(struct timespec){0, 200000}, NULL);
    }
    is_over = 1;
    pthread_join(thread, NULL);
    printf("%s\n", is_seen ? word : "never");
}

// A child holds the lock until the file has the second word, and then does not release it. Waits
// until the file has the third one.
static void leave_to_child(char **words) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        exit(6);
    pid_t child = fork();
    if (!child) {
        pthread_mutex_lock(&outer);
        await(words[1], words[2]);
        if (!strcmp(words[4], "child-killed"))
            kill(getpid(), SIGKILL);
        char *none[] = {NULL};
        if (!strcmp(words[4], "child-executes"))
            execle("/bin/sleep", "sleep", "60", (char *)NULL, none);
        close(ends[0]);
        close(ends[1]);
        await(words[1], words[3]);
        exit(0);
    }
    // The other end is closed when the child ends, executes, or says so.
    close(ends[1]);
    char byte;
    if (read(ends[0], &byte, 1))
        exit(5);
    if (!strcmp(words[4], "child-left"))
        exit(0);
    await(words[1], words[3]);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static void *hold_and_exit(void *of_main) {
    char **words = of_main;
    await_state(getpid(), 'Z');
    pthread_mutex_lock(&outer);
    await(words[1], words[2]);
    pthread_mutex_unlock(&outer);
    await(words[1], words[3]);
    exit(0);
}

// Lives long enough for its requests to be seen.
KEPT void *vanish(void *unused) {
    pthread_mutex_lock(&inner);
    pthread_mutex_unlock(&inner);
    nanosleep(&(struct timespec){0, 1000000}, NULL);
    syscall(SYS_exit, 0);
    return unused;
}

// In a thread of its own, which has made no request before.
static void *hold_until_of(void *of_main) {
    char **words = of_main;
    hold_until(words[1], words[2]);
    return NULL;
}

int main(int count, char **words) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count == 3) {
        hold_until(words[1], words[2]);
        return 0;
    }
    if (count > 4 && !strncmp(words[4], "child", 5)) {
        leave_to_child(words);
        return 0;
    }
    pthread_t thread;
    if (count > 4 && !strcmp(words[4], "main-ends")) {
        pthread_create(&thread, NULL, hold_and_exit, words);
        pthread_exit(NULL);
    }
    if (count > 4 && !strcmp(words[4], "threads")) {
        for (int number = 0; number < 1100; ++number)
            pthread_join(start(vanish), NULL);
        pthread_create(&thread, NULL, hold_until_of, words);
        pthread_join(thread, NULL);
        return 0;
    }
    if (count > 3) {
        pthread_mutex_lock(&outer);
        await(words[1], words[2]);
        if (count > 4)
            kill(strcmp(words[4], "parent") ? getpid() : getppid(), SIGKILL);
        pthread_mutex_unlock(&outer);
        await(words[1], words[3]);
        return 0;
    }
    nest();
    hold();
    signal_condition();
    return 3;
}
