// Exceptions, and destructors on their way, through frames that are hooked.
#include <cstdio>
#include <stdexcept>
#include <string>

static int destroyed;

struct Guard {
    ~Guard() { destroyed++; }
};

__attribute__((noinline)) int thrower(int depth) {
    Guard guard;
    if (depth == 0) throw std::runtime_error("from the bottom");
    return thrower(depth - 1) + 1;
}

__attribute__((noinline)) int catches_in_the_middle(int depth) {
    try {
        return thrower(depth);
    } catch (const std::runtime_error &error) {
        return static_cast<int>(std::string(error.what()).size());
    }
}

__attribute__((noinline)) int rethrows(int depth) {
    Guard guard;
    try {
        return thrower(depth);
    } catch (...) {
        throw;
    }
}

int main() {
    int sum = 0, caught = 0;
    for (int i = 0; i < 300; i++) sum += catches_in_the_middle(i % 17);
    for (int i = 0; i < 300; i++) {
        try {
            sum += rethrows(i % 5);
        } catch (const std::exception &) {
            caught++;
        }
    }
    std::printf("%d %d %d\n", sum, caught, destroyed);
}
