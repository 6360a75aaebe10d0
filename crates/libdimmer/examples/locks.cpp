/*
 * Fair mutexes, reader-writer locks, conditions and barriers under the guards and conditions of the
 * standard library, and what is no use of them.
 */
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "dimmer.hpp"

static void expect(bool is_so) {
    if (!is_so) {
        std::abort();
    }
}

template <typename F> static void in_threads(int count, F work) {
    std::vector<std::thread> threads;
    for (int i = 0; i < count; i++) {
        threads.emplace_back(work, i);
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
}

/* Two threads take turns `rounds` times each. */
template <typename Mutex, typename Condition> static int take_turns(const char *strategy, int rounds) {
    Mutex mutex(strategy);
    Condition changed;
    int turn = 0;
    in_threads(2, [&](int own) {
        mutex.start();
        for (int i = 0; i < rounds; i++) {
            std::unique_lock<Mutex> lock(mutex);
            changed.wait(lock, [&] { return turn % 2 == own; });
            turn++;
            changed.notify_all();
        }
    });
    std::lock_guard<Mutex> lock(mutex);
    return turn;
}

/* Writers change both numbers, so readers find them equal. */
static int read_and_write(const char *strategy) {
    dimmer::shared_mutex mutex(strategy);
    int first = 0, second = 0;
    in_threads(3, [&](int) {
        mutex.start();
        for (int i = 0; i < 100; i++) {
            {
                std::shared_lock<dimmer::shared_mutex> lock(mutex);
                expect(first == second);
            }
            std::lock_guard<dimmer::shared_mutex> lock(mutex);
            first++;
            second++;
        }
    });
    return first;
}

template <typename F> static void print_refusal(F make) {
    try {
        make();
        std::printf("made\n");
    } catch (const std::invalid_argument &error) {
        std::printf("%s\n", error.what());
    }
}

template <typename F> static bool is_refused(F use, std::errc expected) {
    try {
        use();
        return false;
    } catch (const std::system_error &error) {
        return error.code() == expected;
    }
}

static void lock_several() {
    dimmer::mutex word("futex");
    dimmer::mcs_mutex queue("futex");
    dimmer::shared_mutex shared("futex");
    std::lock(word, queue, shared);
    word.unlock();
    queue.unlock();
    shared.unlock();
#if __cplusplus >= 201703L
    std::scoped_lock all(word, queue, shared);
    expect(!std::unique_lock(queue, std::try_to_lock));
#endif
}

/* A condition of the standard library, and one without its own mutex. */
static void wait_for_shared_mutex() {
    dimmer::shared_mutex mutex;
    std::condition_variable_any changed;
    bool is_done = false;
    std::thread other([&] {
        std::lock_guard<dimmer::shared_mutex> lock(mutex);
        is_done = true;
        changed.notify_all();
    });
    std::shared_lock<dimmer::shared_mutex> lock(mutex);
    changed.wait(lock, [&] { return is_done; });
    lock.unlock();
    other.join();
}

static void count_in_rounds(const char *strategy) {
    dimmer::barrier barrier(4, strategy);
    std::atomic<int> sum(0), lasts(0);
    in_threads(4, [&](int) {
        barrier.start();
        for (int i = 1; i <= 20; i++) {
            sum++;
            lasts += barrier.wait() ? 1 : 0;
            expect(sum == 4 * i);
            barrier.wait();
        }
    });
    std::printf("barrier %s %d %d\n", strategy, sum.load(), lasts.load());
}

int main() {
    for (const char *strategy : {"auto", "futex", "ownr", "wait"}) {
        const int by_any = take_turns<dimmer::mcs_mutex, std::condition_variable_any>(strategy, 200);
        const int by_own = take_turns<dimmer::mcs_mutex, dimmer::condition_variable>(strategy, 200);
        std::printf("%s %d %d %d\n", strategy, by_any, by_own, read_and_write(strategy));
    }
    expect(take_turns<dimmer::mutex, dimmer::condition_variable>("spin", 100) == 200);
    lock_several();
    wait_for_shared_mutex();
    print_refusal([] { dimmer::mcs_mutex mutex("owner"); });
    print_refusal([] { dimmer::shared_mutex mutex("owner"); });
    print_refusal([] { dimmer::barrier barrier(2, "ownr"); });
    print_refusal([] { dimmer::barrier barrier(0); });
    dimmer::shared_mutex mutex;
    dimmer::mcs_mutex queue;
    dimmer::condition_variable changed;
    std::unique_lock<dimmer::mcs_mutex> not_locked(queue, std::defer_lock);
    std::shared_lock<dimmer::shared_mutex> lock(mutex);
    expect(!std::unique_lock<dimmer::shared_mutex>(mutex, std::try_to_lock));
    expect(!mutex.try_lock_shared());
    const auto deadlock = std::errc::resource_deadlock_would_occur;
    const bool read_then_write = is_refused([&] { mutex.lock(); }, deadlock);
    const bool read_twice = is_refused([&] { mutex.lock_shared(); }, deadlock);
    const bool without = is_refused([&] { changed.wait(not_locked); }, std::errc::operation_not_permitted);
    std::lock_guard<dimmer::mcs_mutex> locked(queue);
    const bool twice = is_refused([&] { queue.lock(); }, deadlock);
    std::printf("refused: %d %d %d %d\n", read_then_write, read_twice, without, twice);
    count_in_rounds("auto");
    count_in_rounds("wait");
}
