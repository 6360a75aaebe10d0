// Gives up time stamps or system calls, takes locks afterwards, and ends with status 7. The first
// argument says how; the second is a file, which has the third while a lock is held, and the fourth
// afterwards:
//   time: of the thread that holds the lock; a thread that it starts ends with a lock
//   others: another thread holds the lock, and takes one more afterwards
//   calls: the strict mode of seccomp; the first lock at a place comes then
//   calls-by-number, time-by-number: as the two, by syscall(2)
//   listener: by a filter, whose system call returns a file
//   refused: the kernel refuses it
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define KEPT __attribute__((noinline, noclone, noipa))

static pthread_mutex_t outer = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t inner = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t shared = PTHREAD_RWLOCK_INITIALIZER;
static atomic_int step;
static char **words;

KEPT void take_before(void) {
    pthread_mutex_lock(&inner);
    pthread_mutex_unlock(&inner);
}

KEPT void take_after(void) {
    for (int turn = 0; turn < 10; ++turn) {
        pthread_mutex_lock(&inner);
        pthread_mutex_unlock(&inner);
        pthread_rwlock_rdlock(&shared);
        pthread_rwlock_unlock(&shared);
    }
}

static void give_up_time(void) {
    if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0))
        exit(9);
}

// Waits until the file has this word, for a minute.
static void await(const char *word) {
    for (int turn = 0; turn < 60000; ++turn) {
        char text[64] = "";
        FILE *file = fopen(words[2], "r");
        int found = file && fscanf(file, "%63s", text) == 1 && !strcmp(text, word);
        if (file)
            fclose(file);
        if (found)
            return;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    exit(8);
}

static void *end_with_lock(void *unused) {
    (void)unused;
    take_after();
    pthread_mutex_lock(&outer);
    struct timespec past = {0, 0};
    pthread_cond_timedwait(&condition, &outer, &past);
    pthread_exit(NULL);
}

static void *hold(void *unused) {
    pthread_mutex_lock(&outer);
    await(words[3]);
    step = 1;
    while (step < 2)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    take_after();
    await(words[4]);
    pthread_mutex_unlock(&outer);
    return unused;
}

int main(int count, char **arguments) {
    words = arguments;
    const char *how = count > 1 ? words[1] : "";
    pthread_t thread;
    take_before();
    if (!strcmp(how, "time")) {
        pthread_mutex_lock(&outer);
        await(words[3]);
        give_up_time();
        await(words[4]);
        pthread_mutex_unlock(&outer);
        take_after();
        pthread_create(&thread, NULL, end_with_lock, NULL);
        pthread_join(thread, NULL);
    } else if (!strcmp(how, "others")) {
        pthread_create(&thread, NULL, hold, NULL);
        while (step < 1)
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        give_up_time();
        step = 2;
        pthread_join(thread, NULL);
    } else if (!strcmp(how, "calls")) {
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT))
            return 9;
        take_after();
        syscall(SYS_exit, 7);
    } else if (!strcmp(how, "calls-by-number")) {
        if (syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, NULL))
            return 9;
        take_after();
        syscall(SYS_exit, 7);
    } else if (!strcmp(how, "time-by-number")) {
        if (syscall(SYS_prctl, PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0))
            return 9;
        take_after();
        // All six arguments arrive.
        int zero = open("/dev/zero", O_RDONLY);
        long page = syscall(SYS_mmap, NULL, 4096, PROT_READ, MAP_PRIVATE, zero, 4096);
        if (page == -1 || syscall(SYS_mmap, NULL, 4096, PROT_READ, MAP_PRIVATE, zero, 1) != -1)
            return 8;
    } else if (!strcmp(how, "listener")) {
        struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
        struct sock_fprog filter = {1, all};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
            return 9;
        long file = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                            SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
        if (file <= 0)
            return 8;
        take_after();
    } else if (!strcmp(how, "refused")) {
        if (!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL) || !prctl(PR_SET_TSC, 77))
            return 9;
        if (!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL) || errno != EFAULT)
            return 8;
        take_after();
    } else {
        take_after();
    }
    return 7;
}
