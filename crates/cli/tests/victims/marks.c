// Functions as marks: threads, a child of fork that ends by _exit, a handler of signals, errno, and
// another program that takes the place of this one. Prints what it computes.
//
// marks ROUNDS           does all of it, and executes itself:
// marks ROUNDS again     only the first thread's part

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MARK __attribute__((noinline, noclone, used))

enum { THREADS = 3 };

static int rounds;
static volatile unsigned long handled;

MARK unsigned long compute(unsigned long from) {
    for (int i = 0; i < 100; i++) {
        from = from * 6364136223846793005 + 1442695040888963407;
    }
    return from;
}

// Arguments in vector registers, on the stack, and a result in a vector register.
MARK double chase(double a, double b, int c, int d, int e, int f, int g, int h, double last) {
    double sum = a + b + last;
    for (int i = 0; i < 100; i++) {
        sum += (c * d + e * f - g * h) / (sum + 1);
    }
    return sum;
}

MARK unsigned long finish(unsigned long from) {
    return from ^ from >> 17;
}

MARK void in_handler(int signal) {
    handled += signal;
}

static void handle(int signal) {
    in_handler(signal);
}

static double work(int number) {
    unsigned long random = number;
    double sum = 0;
    for (int i = 0; i < rounds; i++) {
        errno = 1000 + i;
        random = compute(random);
        sum += chase(1, 2, i, 3, 4, 5, 6, 7, sum);
        if (errno != 1000 + i) {
            printf("errno has changed\n");
        }
    }
    return sum + (finish(random) & 0xffff);
}

static void *thread(void *number) {
    double *result = malloc(sizeof *result);
    *result = work((int)(long)number);
    return result;
}

int main(int count, char **words) {
    rounds = atoi(words[1]);
    printf("first %.6f\n", work(0));
    if (count > 2) {
        return 7;
    }
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, thread, (void *)(i + 1));
    }
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        printf("thread %d %.6f\n", i, *(double *)result);
        free(result);
    }
    signal(SIGUSR1, handle);
    for (int i = 0; i < rounds; i++) {
        raise(SIGUSR1);
    }
    printf("handled %lu\n", handled);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        printf("child %.6f\n", work(9));
        fflush(stdout);
        _exit(3);
    }
    int status;
    waitpid(child, &status, 0);
    printf("child ended with %d\n", WEXITSTATUS(status));
    fflush(stdout);
    execl(words[0], words[0], words[1], "again", NULL);
    return 1;
}
