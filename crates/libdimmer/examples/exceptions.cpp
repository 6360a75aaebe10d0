/*
 * Exceptions and return values in C++: they pass the ends of regions, and come home from dedicated cores. Prints one line for
 * each, and where it ran to standard error.
 */
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>

#include "dimmer.hpp"

static thread_local int own = 7;

static unsigned cpu() {
    unsigned cpu = 0;
    syscall(SYS_getcpu, &cpu, nullptr, nullptr);
    return cpu;
}

static unsigned ran_on;

static int &thrower(int how) {
    DIMMER_REGION("thrower");
    static int value = 1;
    ran_on = cpu();
    own++;
    if (how != 0) {
        throw std::runtime_error("thrown " + std::to_string(how));
    }
    return value;
}

static void throw_plainly(void *) { thrower(7); }

DIMMER_SITE(scope, "scope");

template <typename F> static std::string caught(F work) {
    try {
        work();
    } catch (const std::exception &error) {
        return error.what();
    }
    return "nothing";
}

static void print(const char *what, const std::string &value) {
    std::printf("%s: %s\n", what, value.c_str());
}

int main() {
    const unsigned home = cpu();
    for (int i = 0; i < 100; i++) {
        caught([] { thrower(1); });
    }
    print("region", caught([] { thrower(1); }));
    std::fprintf(stderr, "region ran on %u\n", ran_on);
    print("guard", caught([] {
        dimmer::region region(scope);
        thrower(2);
    }));
    print("call", caught([] { DIMMER_EXEC(thrower, 3); }));
    DIMMER_EXEC(thrower, 0) = 5;
    print("reference", std::to_string(thrower(0)));
    print("own", std::to_string(own));

    print("delegate", caught([] { dimmer::delegate([] { thrower(4); }); }));
    std::fprintf(stderr, "delegate ran on %u\n", ran_on);
    print("migrate", caught([] { dimmer::migrate([] { thrower(5); }); }));
    std::fprintf(stderr, "migrate ran on %u\n", ran_on);
    print("migrate in C", caught([] { dimmer_migrate(throw_plainly, nullptr); }));
    print("run", caught([] { dimmer::run(scope, [] { thrower(6); }); }));
    auto text = dimmer::delegate([] { return std::unique_ptr<std::string>(new std::string("moved")); });
    print("value", *text);
    dimmer::delegate([&]() -> std::string & { return *text; }) = "assigned";
    print("through a reference", *text);
    std::fprintf(stderr, "at home on %u, began on %u\n", cpu(), home);
}
