// Sections that touch an exact number of fresh pages, sleep exactly once, do neither, or are shorter
// than any reading of counters; and what a program may do to files, processes and itself meanwhile.
// The output must not depend on whether sections are measured.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KEPT __attribute__((noinline, noclone, noipa))
enum { PAGE = 4096, PAGES = 8, SECTIONS = 400, SLEEPS = 20, SHORT = 100000, THREADS = 40 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t inner = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t of_handler = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;

static void spin(long us) {
    struct timespec since, now;
    clock_gettime(CLOCK_MONOTONIC, &since);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - since.tv_sec) * 1000000 + (now.tv_nsec - since.tv_nsec) / 1000 < us);
}

// All code is there, and the counters are open.
KEPT void warm_up(void) {
    for (int round = 0; round < 200; ++round) {
        pthread_mutex_lock(&mutex);
        spin(200);
        pthread_mutex_unlock(&mutex);
    }
}

KEPT void touch_fresh(void) {
    size_t bytes = (size_t)SECTIONS * PAGES * PAGE;
    volatile char *fresh =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED || madvise((void *)fresh, bytes, MADV_NOHUGEPAGE))
        exit(9);
    for (int section = 0; section < SECTIONS; ++section) {
        pthread_mutex_lock(&mutex);
        for (int page = 0; page < PAGES; ++page)
            fresh[((size_t)section * PAGES + page) * PAGE] = 1;
        pthread_mutex_unlock(&mutex);
    }
}

KEPT void sleep_inside(void) {
    for (int round = 0; round < SLEEPS; ++round) {
        struct timespec time = {0, 2000000};
        pthread_mutex_lock(&mutex);
        while (nanosleep(&time, &time))
            ;
        pthread_mutex_unlock(&mutex);
    }
}

KEPT void spin_inside(void) {
    for (int round = 0; round < 100; ++round) {
        pthread_mutex_lock(&mutex);
        spin(100);
        pthread_mutex_unlock(&mutex);
    }
}

KEPT void take_short(void) {
    for (int round = 0; round < SHORT; ++round) {
        pthread_mutex_lock(&mutex);
        pthread_mutex_unlock(&mutex);
    }
}

KEPT void take_inner(void) {
    pthread_mutex_lock(&inner);
    spin(100);
    pthread_mutex_unlock(&inner);
}

KEPT void take_outer(void) {
    for (int round = 0; round < 100; ++round) {
        pthread_mutex_lock(&mutex);
        spin(50);
        take_inner();
        pthread_mutex_unlock(&mutex);
    }
}

// Each wait ends a section, and the end of the wait begins one.
KEPT void wait_inside(void) {
    struct timespec past = {0, 0};
    for (int round = 0; round < 100; ++round) {
        pthread_mutex_lock(&mutex);
        pthread_cond_timedwait(&condition, &mutex, &past);
        spin(100);
        pthread_mutex_unlock(&mutex);
    }
}

// A lock that is never released.
KEPT void keep(void) {
    static pthread_mutex_t kept = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&kept);
}

// As other processes do it, and while signals come.
KEPT void spin_elsewhere(void) {
    for (int round = 0; round < 100; ++round) {
        pthread_mutex_lock(&mutex);
        spin(100);
        pthread_mutex_unlock(&mutex);
    }
}

static void *run_thread(void *unused) {
    spin_elsewhere();
    return unused;
}

static int files(void) {
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (directory && readdir(directory))
        ++count;
    closedir(directory);
    return count;
}

static int status_of(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return status;
}

// In a section that may be measured, the C library knows of the fork, or does not.
KEPT void fork_inside(void) {
    int failed = 0;
    for (int round = 0; round < 40; ++round) {
        pthread_mutex_lock(&mutex);
        spin(100);
        pid_t child = round % 2 ? fork() : (pid_t)syscall(SYS_fork);
        if (!child) {
            pthread_mutex_unlock(&mutex);
            spin_elsewhere();
            _exit(0);
        }
        pthread_mutex_unlock(&mutex);
        failed += status_of(child) != 0;
    }
    printf("forks that failed: %d\n", failed);
}

// A child that may open no file, and one that may make hardly any system call.
KEPT void confine(void) {
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_NOFILE, &none);
        spin_elsewhere();
        _exit(7);
    }
    printf("without files: %d\n", WEXITSTATUS(status_of(child)));
    child = fork();
    if (!child) {
        spin_elsewhere();
        pthread_mutex_lock(&mutex);
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT))
            _exit(1);
        pthread_mutex_unlock(&mutex);
        for (int round = 0; round < 1000; ++round) {
            pthread_mutex_lock(&mutex);
            pthread_mutex_unlock(&mutex);
        }
        syscall(SYS_exit, 8);
    }
    printf("without system calls: %d\n", WEXITSTATUS(status_of(child)));
}

// Closes all files, those of others, too.
KEPT void close_all(void) {
    syscall(SYS_close_range, 3, ~0U, 0);
    int first = open("/dev/null", O_RDWR), second = open("/dev/zero", O_RDONLY);
    spin_elsewhere();
    char byte = 1;
    printf("%d %d %zd %d\n", first, second, read(second, &byte, 1), byte);
    close(first);
    close(second);
}

static void handle(int signal) {
    (void)signal;
    pthread_mutex_lock(&of_handler);
    pthread_mutex_unlock(&of_handler);
}

int main(void) {
    int before = files();
    keep();
    warm_up();
    touch_fresh();
    sleep_inside();
    spin_inside();
    take_short();
    take_outer();
    wait_inside();
    printf("more files: %d\n", files() - before);
    pthread_t threads[THREADS];
    for (int thread = 0; thread < THREADS; ++thread)
        pthread_create(&threads[thread], NULL, run_thread, NULL);
    for (int thread = 0; thread < THREADS; ++thread)
        pthread_join(threads[thread], NULL);
    fork_inside();
    confine();
    signal(SIGALRM, handle);
    struct itimerval often = {{0, 300}, {0, 300}};
    setitimer(ITIMER_REAL, &often, NULL);
    spin_elsewhere();
    often = (struct itimerval){{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    close_all();
    return 5;
}
