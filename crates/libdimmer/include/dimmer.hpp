/*
 * Dimmer for C++11 and later: regions and requests of clocks as objects, callables on dedicated cores,
 * and a mutex.
 *
 *     dimmer::region region(parse_site);             // until the end of the block
 *     double sum = dimmer::delegate([&] { return transform(numbers); });
 *     dimmer::pace fast(DIMMER_PACE_TURBO);          // until the end of the block
 *
 * What is thrown on a dedicated core goes on at home. A thread may end in a callable, or be cancelled there, where that runs as the thread
 * itself; a callable that ends a worker (delegate, run) is `lost`. The macros of dimmer.h work in C++, too.
 */
#ifndef DIMMER_HPP
#define DIMMER_HPP

#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>

#include "dimmer.h"

namespace dimmer {

/** Work was begun on a dedicated core whose worker has ended since. */
struct lost : std::runtime_error {
    lost() : std::runtime_error("the worker ended in the middle of this work") {}
};

/** The calling thread is in a region of the site, until the end of this object, which must be on the same thread. */
class region {
  public:
    explicit region(const dimmer_site &site) noexcept : site_(site), entered_(dimmer_enter(&site)) {}
    ~region() {
        if (__builtin_expect(entered_.since != 0, 0)) {
            dimmer_exit(&site_, entered_);
        }
    }
    region(const region &) = delete;
    region &operator=(const region &) = delete;

  private:
    const dimmer_site &site_;
    const dimmer_entered entered_;
};

/** The calling thread asks for a clock, until the end of this object, which must be on the same
    thread; see dimmer_pace_begin(). */
class pace {
  public:
    explicit pace(std::uint32_t clock) noexcept : scope_(dimmer_pace_begin(clock)) {}
    ~pace() { dimmer_pace_end(scope_); }
    pace(const pace &) = delete;
    pace &operator=(const pace &) = delete;

  private:
    const std::uint64_t scope_;
};

/** The calling thread is on a CPU of dimmer_pace_dedicate_fast(), until the end of this object, which must be on the same thread. Without one it stays where it is. */
class fast_core {
  public:
    fast_core() noexcept : is_there_(dimmer_pace_go_to_fast_core() == 0) {}
    ~fast_core() {
        if (is_there_) {
            dimmer_pace_go_home();
        }
    }
    fast_core(const fast_core &) = delete;
    fast_core &operator=(const fast_core &) = delete;
    explicit operator bool() const noexcept { return is_there_; }

  private:
    const bool is_there_;
};

namespace detail {

/* What a callable returns, until it is taken. */
template <typename T> class result {
  public:
    result() noexcept {}
    ~result() {
        if (is_there_) {
            value()->~T();
        }
    }
    result(const result &) = delete;
    result &operator=(const result &) = delete;
    template <typename F> void set(F &work) {
        ::new (static_cast<void *>(bytes_)) T(work());
        is_there_ = true;
    }
    T take() { return std::move(*value()); }

  private:
    T *value() { return reinterpret_cast<T *>(bytes_); }
    alignas(T) unsigned char bytes_[sizeof(T)];
    bool is_there_ = false;
};

template <typename T> class result<T &> {
  public:
    template <typename F> void set(F &work) { value_ = &work(); }
    T &take() { return *value_; }

  private:
    T *value_ = nullptr;
};

template <> class result<void> {
  public:
    template <typename F> void set(F &work) { work(); }
    void take() {}
};

/* A callable's call, wherever it happens. */
template <typename F> class call {
  public:
    using type = decltype(std::declval<F &>()());

    explicit call(F &work) : work_(work) {}
    static void happen(void *self) {
        call &own = *static_cast<call *>(self);
        try {
            own.result_.set(own.work_);
        } catch (...) {
            own.thrown_ = std::current_exception();
            if (!own.thrown_) {
                /* No exception of C++: the thread ends or is cancelled, which nobody may keep from going on. */
                throw;
            }
        }
    }
    type settle(bool has_happened) {
        if (!has_happened) {
            throw lost();
        }
        if (thrown_) {
            std::rethrow_exception(std::move(thrown_));
        }
        return result_.take();
    }

  private:
    F &work_;
    result<type> result_;
    std::exception_ptr thrown_;
};

} // namespace detail

/** Calls it as is decided for the site, and returns what it returns; see dimmer_run(). Throws what it throws, or `lost`. */
template <typename F> auto run(const dimmer_site &site, F &&work) -> decltype(work()) {
    detail::call<typename std::remove_reference<F>::type> call(work);
    return call.settle(dimmer_run(&site, call.happen, &call));
}

/**
 * Calls it on a dedicated core, on the stack and with the thread-local storage of its worker, and returns what it returns; see
 * dimmer_delegate(). Throws what it throws, or `lost`.
 */
template <typename F> auto delegate(F &&work) -> decltype(work()) {
    detail::call<typename std::remove_reference<F>::type> call(work);
    return call.settle(dimmer_delegate(call.happen, &call));
}

/** Calls it on a dedicated core as the same thread, and returns what it returns; see dimmer_migrate(). Throws what it throws. */
template <typename F> auto migrate(F &&work) -> decltype(work()) {
    detail::call<typename std::remove_reference<F>::type> call(work);
    dimmer_migrate(call.happen, &call);
    return call.settle(true);
}

/**
 * A mutex with a strategy, see dimmer_mutex_init(): for std::lock_guard, std::unique_lock and std::condition_variable_any.
 *
 * A thread that releases a mutex that it does not have ends the program (std::terminate), and so does the end of a mutex that a
 * thread has.
 */
class mutex {
  public:
    /** Throws std::invalid_argument if there is no strategy of this name. */
    explicit mutex(const char *strategy = "auto") {
        if (dimmer_mutex_init(&own_, strategy) != 0) {
            throw std::invalid_argument("dimmer::mutex: unknown strategy `" + std::string(strategy) + "`, expected one of " +
                                        dimmer_mutex_strategies());
        }
    }
    ~mutex() { expect(dimmer_mutex_destroy(&own_)); }
    mutex(const mutex &) = delete;
    mutex &operator=(const mutex &) = delete;

    /** Throws std::system_error (resource_deadlock_would_occur) if the calling thread has the mutex already. */
    void lock() {
        const int error = dimmer_mutex_lock(&own_);
        if (error != 0) {
            throw std::system_error(error, std::generic_category(), "dimmer::mutex");
        }
    }
    bool try_lock() noexcept { return dimmer_mutex_trylock(&own_) == 0; }
    void unlock() noexcept { expect(dimmer_mutex_unlock(&own_)); }
    /** See dimmer_mutex_start(). */
    void start() noexcept { expect(dimmer_mutex_start(&own_)); }

  private:
    static void expect(int error) noexcept {
        if (error != 0) {
            std::terminate();
        }
    }
    dimmer_mutex own_;
};

} // namespace dimmer

#endif /* DIMMER_HPP */
