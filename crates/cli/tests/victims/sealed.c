// Executes its arguments as a program whose executable memory can never be changed, including that
// of libraries it loads.
#include <errno.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#endif

int main(int count, char **arguments) {
    (void)count;
    // EINVAL: a kernel before 6.3.
    if (prctl(PR_SET_MDWE, 1UL, 0UL, 0UL, 0UL) && errno != EINVAL) return 9;
    execv(arguments[1], arguments + 1);
    return 8;
}
