/*
 * Dimmer for C++11 and later: regions and requests of clocks as objects, callables on dedicated cores,
 * and locks.
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

#include <cerrno>
#include <cstdint>
#include <exception>
#include <mutex>
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

namespace detail {

/* For what is no use of a lock: ends the program. */
inline void expect(int error) noexcept {
    if (error != 0) {
        std::terminate();
    }
}

/* For what its caller can act on. */
inline void require(int error, const char *type) {
    if (error != 0) {
        throw std::system_error(error, std::generic_category(), type);
    }
}

/* For the making of a lock. */
inline void require_strategy(int error, const char *type, const char *strategy, const char *accepted) {
    if (error == EINVAL) {
        throw std::invalid_argument(std::string(type) + ": unknown strategy `" + strategy + "`, expected one of " + accepted);
    }
    require(error, type);
}

} // namespace detail

/**
 * A mutex with a strategy, see dimmer_mutex_init(). It is Lockable: for std::lock_guard, std::unique_lock, std::lock,
 * std::scoped_lock and std::condition_variable_any.
 *
 * A thread that releases a mutex that it does not have ends the program (std::terminate), and so does the end of a mutex that a
 * thread has.
 */
class mutex {
  public:
    /** Throws std::invalid_argument if there is no strategy of this name. */
    explicit mutex(const char *strategy = "auto") : mutex(dimmer_mutex_init, strategy, "dimmer::mutex") {}
    ~mutex() { detail::expect(dimmer_mutex_destroy(&own_)); }
    mutex(const mutex &) = delete;
    mutex &operator=(const mutex &) = delete;

    /** Throws std::system_error (resource_deadlock_would_occur) if the calling thread has the mutex already. */
    void lock() { detail::require(dimmer_mutex_lock(&own_), "dimmer::mutex"); }
    bool try_lock() noexcept { return dimmer_mutex_trylock(&own_) == 0; }
    void unlock() noexcept { detail::expect(dimmer_mutex_unlock(&own_)); }
    /** See dimmer_mutex_start(). */
    void start() noexcept { detail::expect(dimmer_mutex_start(&own_)); }
    /** For C functions. */
    dimmer_mutex *native_handle() noexcept { return &own_; }

  protected:
    mutex(int (*init)(dimmer_mutex *, const char *), const char *strategy, const char *type) {
        detail::require_strategy(init(&own_, strategy), type, strategy, dimmer_mutex_strategies());
    }

  private:
    dimmer_mutex own_;
};

/** A fair mutex with a strategy, see dimmer_mutex_init_mcs(): threads get it in the order in which they asked for it. */
class mcs_mutex : public mutex {
  public:
    /** Throws std::invalid_argument if there is no strategy of this name. */
    explicit mcs_mutex(const char *strategy = "auto") : mutex(dimmer_mutex_init_mcs, strategy, "dimmer::mcs_mutex") {}
};

/**
 * A reader-writer lock with a strategy, see dimmer_rwlock_init(). It is Lockable and SharedLockable: for std::unique_lock and
 * std::shared_lock.
 *
 * A thread that releases a lock that it does not have ends the program (std::terminate), and so does the end of a lock that a
 * thread has. Unlike a mutex, it must not end before all threads have returned from its functions.
 */
class shared_mutex {
  public:
    /** Throws std::invalid_argument if there is no strategy of this name. */
    explicit shared_mutex(const char *strategy = "auto") {
        detail::require_strategy(dimmer_rwlock_init(&own_, strategy), type, strategy, dimmer_mutex_strategies());
    }
    ~shared_mutex() { detail::expect(dimmer_rwlock_destroy(&own_)); }
    shared_mutex(const shared_mutex &) = delete;
    shared_mutex &operator=(const shared_mutex &) = delete;

    /** Throws std::system_error (resource_deadlock_would_occur) if the calling thread has the lock already, in either way. */
    void lock() { detail::require(dimmer_rwlock_wrlock(&own_), type); }
    bool try_lock() noexcept { return dimmer_rwlock_trywrlock(&own_) == 0; }
    void unlock() noexcept { detail::expect(dimmer_rwlock_unlock(&own_)); }
    /** Throws as lock(), and resource_unavailable_try_again in the last destructors of a thread. */
    void lock_shared() { detail::require(dimmer_rwlock_rdlock(&own_), type); }
    bool try_lock_shared() noexcept { return dimmer_rwlock_tryrdlock(&own_) == 0; }
    void unlock_shared() noexcept { detail::expect(dimmer_rwlock_unlock(&own_)); }
    /** See dimmer_rwlock_start(). */
    void start() noexcept { detail::expect(dimmer_rwlock_start(&own_)); }
    /** For C functions. */
    dimmer_rwlock *native_handle() noexcept { return &own_; }

  private:
    static constexpr const char *type = "dimmer::shared_mutex";
    dimmer_rwlock own_;
};

/** A condition for a mutex or an mcs_mutex, see dimmer_cond_wait(): as std::condition_variable_any, without its own mutex. */
class condition_variable {
  public:
    condition_variable() noexcept { detail::expect(dimmer_cond_init(&own_)); }
    ~condition_variable() { detail::expect(dimmer_cond_destroy(&own_)); }
    condition_variable(const condition_variable &) = delete;
    condition_variable &operator=(const condition_variable &) = delete;

    /** Throws std::system_error (operation_not_permitted) if the calling thread does not have the mutex. */
    template <typename M> void wait(std::unique_lock<M> &lock) {
        const bool is_locked = lock.owns_lock();
        detail::require(is_locked ? dimmer_cond_wait(&own_, lock.mutex()->native_handle()) : EPERM, "dimmer::condition_variable");
    }
    /** Waits until the condition is true, which is evaluated under the mutex. */
    template <typename M, typename F> void wait(std::unique_lock<M> &lock, F condition) {
        while (!condition()) {
            wait(lock);
        }
    }
    void notify_one() noexcept { detail::expect(dimmer_cond_signal(&own_)); }
    void notify_all() noexcept { detail::expect(dimmer_cond_broadcast(&own_)); }

  private:
    dimmer_cond own_;
};

/** A barrier with a strategy, see dimmer_barrier_init(). Its end while threads wait ends the program (std::terminate). */
class barrier {
  public:
    /** Throws std::invalid_argument if `count` is 0, or if barriers have no strategy of this name. */
    explicit barrier(unsigned count, const char *strategy = "auto") {
        if (count == 0) {
            throw std::invalid_argument("dimmer::barrier: 0 threads, expected at least 1");
        }
        const int error = dimmer_barrier_init(&own_, strategy, count);
        detail::require_strategy(error, "dimmer::barrier", strategy, dimmer_barrier_strategies());
    }
    ~barrier() { detail::expect(dimmer_barrier_destroy(&own_)); }
    barrier(const barrier &) = delete;
    barrier &operator=(const barrier &) = delete;

    /** Waits until all threads have called this. Returns true to the last of them. */
    bool wait() noexcept { return dimmer_barrier_wait(&own_) != 0; }
    /** See dimmer_barrier_start(). */
    void start() noexcept { detail::expect(dimmer_barrier_start(&own_)); }

  private:
    dimmer_barrier own_;
};

} // namespace dimmer

#endif /* DIMMER_HPP */
