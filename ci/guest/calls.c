// Calls a function, from so many threads, for as long as there is a file; a child does likewise.
//
// usage: calls FILE THREADS
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *file;

// Longer than any way there and back, also where the processor is emulated.
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
