/**
 * The version of this header, and the same as a number: 10000 for each major version, 100 for each minor one.
 */
#define DIMMER_VERSION "@VERSION@"
#define DIMMER_VERSION_NUMBER @NUMBER@

/**
 * Defines a site: `DIMMER_SITE(parse_site, "parse");`. Its name is what a policy calls it, a string literal; without one ("" or nothing)
 * it is called by file and line. A shared object that has sites must stay loaded once one was entered.
 */
#define DIMMER_SITE(variable, name) DIMMER_SITE_NAMED_(variable, DIMMER_NAME_(name))

#ifndef DIMMER_DISABLE

/**
 * What follows in the block is a region, as in `DIMMER_REGION("parse");`, however the block is left: at its end, by return,
 * break or goto, by an exception. (An exception that passes C code ends its regions if that was compiled with -fexceptions.
 * longjmp() does not end them.)
 */
#define DIMMER_REGION(name) DIMMER_REGION_AT_(DIMMER_NAME_(name), __COUNTER__)

/**
 * Calls a function in a region that has its name: `y = DIMMER_EXEC(transform, numbers, n);` is `y = transform(numbers, n);`
 * with any arguments (62 at most) and any result, or none. The arguments are evaluated in the region, too.
 */
#if defined(__cplusplus) && __cplusplus >= 201402L
/* Results that are references stay so; those of the other way are copied. */
#define DIMMER_EXEC(...)                                                                            \
    ([&]() -> decltype(auto) {                                                                      \
        DIMMER_REGION_AT_(DIMMER_TEXT_(__VA_ARGS__, 0), __COUNTER__);                               \
        return DIMMER_CALL_(__VA_ARGS__);                                                           \
    }())
#else
#define DIMMER_EXEC(...)                                                                            \
    __extension__({                                                                                 \
        DIMMER_REGION_AT_(DIMMER_TEXT_(__VA_ARGS__, 0), __COUNTER__);                               \
        DIMMER_CALL_(__VA_ARGS__);                                                                  \
    })
#endif

/**
 * A mark of this function and line: `dimmer_mark();`. See dimmer_mark_at().
 */
#define dimmer_mark() dimmer_mark_at(__func__, __FILE__ ":" DIMMER_APPLY_(DIMMER_TEXT_, __LINE__, 0))

#else /* With DIMMER_DISABLE, the macros are what the program was without them. Sites may stay defined. */

#define DIMMER_REGION(name) ((void)0)
#define DIMMER_EXEC(...) DIMMER_CALL_(__VA_ARGS__)
#define dimmer_mark() ((void)0)

#endif

/* A region under way. Names that end in an underscore are not for use. */
typedef struct dimmer_region_ {
    const dimmer_site *site;
    dimmer_entered entered;
} dimmer_region_;

__attribute__((unused)) static inline void dimmer_leave_(const dimmer_region_ *region) {
    if (__builtin_expect(region->entered.since != 0, 0)) {
        dimmer_exit(region->site, region->entered);
    }
}

#define DIMMER_REGION_AT_(name, number) DIMMER_REGION_NUMBERED_(name, number)
#define DIMMER_REGION_NUMBERED_(name, number)                                                       \
    DIMMER_SITE_NAMED_(dimmer_site_##number, name);                                                 \
    __attribute__((cleanup(dimmer_leave_), unused)) const dimmer_region_ dimmer_region_##number = { \
        &dimmer_site_##number, dimmer_enter(&dimmer_site_##number)}

/* A site with a name that is not nothing. */
#ifdef __cplusplus
/* A name's length. What is none does not fit. */
extern "C++" {
template <unsigned size>
constexpr uint32_t dimmer_name_must_be_a_string_literal_(const char (&)[size]) {
    return size - 1;
}
}
#define DIMMER_SITE_NAMED_(variable, name)                                                          \
    __attribute__((unused)) static dimmer_site variable = {                                         \
        0, __LINE__, name, __FILE__, dimmer_name_must_be_a_string_literal_(name),                   \
        sizeof(__FILE__) - 1, 0, 0, 0, 0}
#else
#define DIMMER_SITE_NAMED_(variable, name)                                                          \
    __extension__ _Static_assert(                                                                   \
        !__builtin_types_compatible_p(__typeof__(name), __typeof__(&(name)[0])),                    \
        "a region's name must be a string literal");                                                \
    __attribute__((unused)) static dimmer_site variable = {                                         \
        0, __LINE__, name, __FILE__, sizeof(name) - 1, sizeof(__FILE__) - 1, 0, 0, 0, 0}
#endif

/* The name, or "" for nothing: what is called then gives another argument. */
#define DIMMER_NAME_(name) DIMMER_APPLY_(DIMMER_THIRD_, DIMMER_COMMA_ name(), "", name, 0)
#define DIMMER_COMMA_() ,
#define DIMMER_THIRD_(first, second, third, ...) third

/* The first argument as text. */
#define DIMMER_TEXT_(first, ...) #first

/* The first argument called with the others. Before C23 and C++20, what a macro has for its `...` must not be nothing. */
#define DIMMER_CALL_(...)                                                                           \
    DIMMER_APPLY_(DIMMER_64TH_, __VA_ARGS__,                                                        \
        DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_,         \
        DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_,         \
        DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_,         \
        DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_,         \
        DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_,         \
        DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_,         \
        DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_,         \
        DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_,         \
        DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_,         \
        DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITH_,         \
        DIMMER_WITH_, DIMMER_WITH_, DIMMER_WITHOUT_, 0)                                             \
    (__VA_ARGS__)
#define DIMMER_64TH_(                                                                               \
        a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18, a19,       \
        a20, a21, a22, a23, a24, a25, a26, a27, a28, a29, a30, a31, a32, a33, a34, a35, a36,        \
        a37, a38, a39, a40, a41, a42, a43, a44, a45, a46, a47, a48, a49, a50, a51, a52, a53,        \
        a54, a55, a56, a57, a58, a59, a60, a61, a62, a63, picked, ...)                              \
    picked
#define DIMMER_WITH_(function, ...) function(__VA_ARGS__)
#define DIMMER_WITHOUT_(function) function()

/* The macro of that name, with arguments that are macros' calls themselves. */
#define DIMMER_APPLY_(macro, ...) macro(__VA_ARGS__)

#endif /* DIMMER_H */
