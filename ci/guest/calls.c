// Calls a function from THREADS threads for as long as FILE exists; a child does the same.
//
// usage: calls FILE THREADS
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *file;

// Takes longer than any migration there and back, also on an emulated processor.
__attribute__((noinline, noclone, noipa)) long kept(void) {
    volatile long sum = 0;
    for (long i = 0; i < 1000000; i++)
        sum += i;
    return sum;
}

static void *call(void *unused) {
    while (access(file, F_OK) == 0)
        kept();
    return unused;
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    file = argv[1];
    pid_t child = fork();
    for (int others = atoi(argv[2]) - 1; others > 0; others--) {
        pthread_t thread;
        if (pthread_create(&thread, 0, call, 0))
            return 1;
    }
    call(0);
    int status = 0;
    if (child > 0)
        waitpid(child, &status, 0);
    return status != 0;
}
