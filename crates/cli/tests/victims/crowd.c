// Many threads and many children that all start before one of them works.
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 100, CHILDREN = 20, CALLS = 10 };

__attribute__((noinline)) double work(double x) {
    for (volatile int i = 0; i < 10; i++) x = x * 1.5 + 1;
    return x;
}

static pthread_barrier_t all;

static void *run(void *unused) {
    pthread_barrier_wait(&all);
    for (int i = 0; i < CALLS; i++) work(i);
    return unused;
}

int main(void) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&all, 0, THREADS);
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, run, 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    int start[2];
    char byte;
    if (pipe(start)) return 1;
    for (int i = 0; i < CHILDREN; i++) {
        if (fork() == 0) {
            close(start[1]);
            // Returns when the parent closes its end of the pipe.
            if (read(start[0], &byte, 1)) _exit(1);
            for (int call = 0; call < CALLS; call++) work(call);
            _exit(0);
        }
    }
    close(start[1]);
    int status, good = 0;
    while (wait(&status) > 0) good += status == 0;
    printf("%d children\n", good);
    return 7;
}
