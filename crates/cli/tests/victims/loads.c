// Loads a library repeatedly while other threads run hooked functions.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static volatile int stop;
static volatile long sink;
static int started;

__attribute__((noinline)) long spin(long n) {
    long sum = 0;
    for (long i = 0; i < n; i++) sum += i ^ sum;
    __asm__ volatile("");
    return sum;
}

static void *thread(void *unused) {
    sink ^= spin(40);
    __atomic_add_fetch(&started, 1, __ATOMIC_SEQ_CST);
    while (!stop) sink ^= spin(40);
    return 0;
}

int main(int count, char **arguments) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], 0, thread, 0);
    while (__atomic_load_n(&started, __ATOMIC_SEQ_CST) < 2) {}
    long sum = 0;
    for (int round = 0; round < 5; round++) {
        void *library = dlopen(arguments[1], RTLD_NOW);
        if (!library) {
            printf("%s\n", dlerror());
            return 1;
        }
        long (*plugged)(long) = (long (*)(long))dlsym(library, "plugged");
        for (int i = 0; i < 200; i++) sum += plugged(i);
        dlclose(library);
    }
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    printf("%ld\n", sum);
    return 0;
}
