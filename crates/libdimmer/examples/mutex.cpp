/*
 * A dimmer::mutex under the guards and conditions of the standard library: two threads take turns.
 */
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "dimmer.hpp"

static void expect(bool is_so) {
    if (!is_so) {
        std::abort();
    }
}

/* The threads take turns `rounds` times each. */
static int take_turns(const char *strategy, int rounds) {
    dimmer::mutex mutex(strategy);
    std::condition_variable_any changed;
    int turn = 0;
    auto play = [&](int own) {
        mutex.start();
        for (int i = 0; i < rounds; i++) {
            std::unique_lock<dimmer::mutex> lock(mutex);
            changed.wait(lock, [&] { return turn % 2 == own; });
            turn++;
            changed.notify_all();
        }
    };
    std::thread other(play, 1);
    play(0);
    other.join();
    std::lock_guard<dimmer::mutex> lock(mutex);
    return turn;
}

int main() {
    for (const char *strategy : {"auto", "futex", "wait"}) {
        std::printf("%s %d\n", strategy, take_turns(strategy, 500));
    }
    try {
        dimmer::mutex mutex("owner");
    } catch (const std::invalid_argument &error) {
        std::printf("%s\n", error.what());
    }
    dimmer::mutex mutex;
    std::unique_lock<dimmer::mutex> lock(mutex);
    expect(!std::unique_lock<dimmer::mutex>(mutex, std::try_to_lock));
    try {
        mutex.lock();
    } catch (const std::system_error &error) {
        std::printf("locked twice: %d\n", error.code() == std::errc::resource_deadlock_would_occur);
    }
}
