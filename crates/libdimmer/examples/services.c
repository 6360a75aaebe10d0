/*
 * Everything that dimmer.h has, in C: regions that are left in several ways, calls of several
 * kinds, errno and thread-local variables in all of them, work for dedicated cores, and what the
 * library reports about itself. Prints one line for each, and to standard error
 * where it ran.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dimmer.h"

static _Thread_local int own = 7;

static unsigned cpu(void) {
    unsigned cpu = 0;
    syscall(SYS_getcpu, &cpu, NULL, NULL);
    return cpu;
}

struct pair {
    double a, b;
};

static struct pair make_pair(double a, float b) { return (struct pair){a, b}; }
static void add_to_own(int number) { own += number; }
static int no_arguments(void) { return 3; }
static int many(int a, int b, int c, int d, int e, int f, int g, double h) {
    return a + b + c + d + e + f + g + (int)h;
}
static int fail(void) { return close(-1); }

static int left_early(int how) {
    for (int i = 0; i < 3; i++) {
        DIMMER_REGION("early");
        if (how == 0) return 1;
        if (how == 1) break;
        if (how == 2) goto out;
        {
            DIMMER_REGION();
        }
    }
    return 2;
out:
    return 3;
}

struct work {
    unsigned cpu;
    int own;
};

static void look(void *argument) {
    struct work *work = argument;
    work->cpu = cpu();
    work->own = own;
    own = own + 1;
    errno = ERANGE;
}

DIMMER_SITE(looking, "looking");

int main(void) {
    struct pair pair = DIMMER_EXEC(make_pair, 1.5, 2.5f);
    DIMMER_EXEC(add_to_own, DIMMER_EXEC(many, 1, 2, 3, 4, 5, 6, 7, 8.0));
    printf("calls %g %g %d %d\n", pair.a, pair.b, own, DIMMER_EXEC(no_arguments));

    errno = 0;
    int failed = DIMMER_EXEC(fail);
    printf("errno %d %d\n", failed, errno == EBADF);
    printf("left %d %d %d %d\n", left_early(0), left_early(1), left_early(2), left_early(3));

    struct work work = {0, 0};
    dimmer_migrate(look, &work);
    printf("migrated %d %d %d\n", work.own, own, errno == ERANGE);
    fprintf(stderr, "migrate ran on %u\n", work.cpu);

    errno = 0;
    own = 7;
    bool has_run = dimmer_delegate(look, &work);
    printf("delegated %d %d %d\n", has_run, work.own, errno == ERANGE);
    fprintf(stderr, "delegate ran on %u\n", work.cpu);
    dimmer_run(&looking, look, &work);
    fprintf(stderr, "run ran on %u\n", work.cpu);

    dimmer_decide(&looking, DIMMER_WHERE_STAY);
    uint64_t before = dimmer_site_statistics(&looking).calls;
    for (int i = 0; i < 10000; i++) {
        dimmer_run(&looking, look, &work);
    }
    dimmer_statistics seen = dimmer_site_statistics(&looking);
    bool is_near = seen.calls > before + 5000 && seen.calls < before + 15000;
    printf("statistics %d %d\n", is_near, !isnan(seen.mean_ns));
    printf("version %d\n", strcmp(dimmer_version(), DIMMER_VERSION) == 0);
    fprintf(stderr, "can migrate %d, cores %zu, policy %d\n", dimmer_can_migrate(), dimmer_dedicated_cores(),
            dimmer_policy());
    return 0;
}
