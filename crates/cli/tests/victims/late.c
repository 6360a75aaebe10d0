// Loads a library with a function that is called by threads that already run, and prints the
// function's address in the library.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static long (*volatile plugged)(long);
static volatile int started;
static volatile long sink;

static void call_often(void) {
    for (long i = 0; i < 100; i++) sink = plugged(i);
}

static void *thread(void *unused) {
    __atomic_add_fetch(&started, 1, __ATOMIC_SEQ_CST);
    while (!plugged) {}
    call_often();
    return unused;
}

int main(int count, char **arguments) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], 0, thread, 0);
    while (started < 3) {}
    void *library = dlopen(arguments[1], RTLD_NOW);
    if (!library) {
        printf("%s\n", dlerror());
        return 1;
    }
    plugged = (long (*)(long))dlsym(library, "plugged");
    Dl_info info;
    dladdr((void *)plugged, &info);
    printf("%#lx\n", (unsigned long)plugged - (unsigned long)info.dli_fbase);
    call_often();
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    return 7;
}
