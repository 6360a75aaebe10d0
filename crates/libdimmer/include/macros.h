/**
 * The version of this header, and the same as a number: 10000 for each major version, 100 for each minor one.
 */
#define DIMMER_VERSION "@VERSION@"
#define DIMMER_VERSION_NUMBER @NUMBER@

#ifndef DIMMER_DISABLE

/**
 * Defines a site: `DIMMER_SITE(parse_site, "parse");`. Its name is what a policy calls it; without one ("" or nothing) it is
 * called by file and line. A shared object that has sites must stay loaded once one was entered.
 */
#define DIMMER_SITE(variable, name)                                                                 \
    static dimmer_site variable = {0, __LINE__, "" name, __FILE__, sizeof("" name) - 1,             \
                                   sizeof(__FILE__) - 1, 0, 0, 0, 0}

/**
 * What follows in the block is a region, as in `DIMMER_REGION("parse");`, however the block is left: at its end, by return,
 * break or goto, by an exception. (An exception that passes C code ends its regions if that was compiled with -fexceptions.
 * longjmp() does not end them.)
 */
#define DIMMER_REGION(name) DIMMER_REGION_AT_(name, __COUNTER__)

/**
 * Calls a function in a region that has its name: `y = DIMMER_EXEC(transform, numbers, n);` is `y = transform(numbers, n);`
 * with any arguments and any result, or none. The arguments are evaluated in the region, too.
 */
#if defined(__cplusplus) && __cplusplus >= 201402L
/* Results that are references stay so; those of the other way are copied. */
#define DIMMER_EXEC(function, ...)                                                                  \
    ([&]() -> decltype(auto) {                                                                      \
        DIMMER_REGION_AT_(#function, __COUNTER__);                                                  \
        return function(__VA_ARGS__);                                                               \
    }())
#else
#define DIMMER_EXEC(function, ...)                                                                  \
    __extension__({                                                                                 \
        DIMMER_REGION_AT_(#function, __COUNTER__);                                                  \
        function(__VA_ARGS__);                                                                      \
    })
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
    DIMMER_SITE(dimmer_site_##number, name);                                                        \
    __attribute__((cleanup(dimmer_leave_), unused)) const dimmer_region_ dimmer_region_##number = { \
        &dimmer_site_##number, dimmer_enter(&dimmer_site_##number)}

#else /* With DIMMER_DISABLE, the macros are what the program was without them. */

#define DIMMER_REGION(name) ((void)0)
#define DIMMER_EXEC(function, ...) function(__VA_ARGS__)

#endif

#endif /* DIMMER_H */
