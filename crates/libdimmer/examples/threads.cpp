/*
 * Many threads in regions of many kinds of functions (members, templates, inline ones), and threads that end in the middle of
 * a region. Every result is checked; prints some, and where one region ran to standard error.
 */
#include <cstdio>
#include <cstdlib>
#include <pthread.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "dimmer.hpp"

struct Adder {
    int base;
    int add(int number) const { return base + number; }
    int add_twice(int number) const { return DIMMER_EXEC(add, DIMMER_EXEC(this->add, number)); }
};

template <typename T> static T twice(T value) {
    DIMMER_REGION("twice");
    return value + value;
}

inline int same(int number) {
    DIMMER_REGION();
    return number;
}

static void *ends_inside(void *) {
    DIMMER_REGION("ends");
    pthread_exit(nullptr);
}

static void expect(bool is_so) {
    if (!is_so) {
        std::abort();
    }
}

int main() {
    const Adder adder{3};
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; i++) {
        threads.emplace_back([&] {
            for (int j = 0; j < 500; j++) {
                expect(DIMMER_EXEC(adder.add, j) == 3 + j);
                expect(dimmer::delegate([&] { return j; }) == j);
                expect(dimmer::migrate([&] { return j; }) == j);
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    for (int i = 0; i < 50; i++) {
        pthread_t thread;
        expect(pthread_create(&thread, nullptr, ends_inside, nullptr) == 0);
        expect(pthread_join(thread, nullptr) == 0);
    }
    unsigned cpu = 0;
    {
        DIMMER_REGION("where");
        syscall(SYS_getcpu, &cpu, nullptr, nullptr);
    }
    std::printf("%d %d %g %d\n", adder.add_twice(2), twice(3), twice(1.5), same(4));
    std::fprintf(stderr, "ran on %u\n", cpu);
}
