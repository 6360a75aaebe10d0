// Two threads that do nothing but lock and unlock a mutex each, ten million times.
#include <pthread.h>
#include <stdio.h>

enum { TIMES = 10000000 };

struct own {
    _Alignas(64) pthread_mutex_t mutex;
    long sum;
};
static struct own all[2] = {{PTHREAD_MUTEX_INITIALIZER, 0}, {PTHREAD_MUTEX_INITIALIZER, 0}};

static void *run(void *argument) {
    struct own *own = argument;
    for (long time = 0; time < TIMES; ++time) {
        pthread_mutex_lock(&own->mutex);
        own->sum += time & 7;
        pthread_mutex_unlock(&own->mutex);
    }
    return NULL;
}

int main(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, &all[1]))
        return 1;
    run(&all[0]);
    pthread_join(thread, NULL);
    printf("%ld\n", all[0].sum + all[1].sum);
    return 0;
}
