// Methods of a class, two of which have the same name. Prints what it computes.

#include <cstdio>

#define MARK __attribute__((noinline, noclone, used))

namespace ns {

struct Class {
    int value = 3;
    MARK int once(int by, const char *text);
    MARK int twice(int by);
    MARK int twice(double by);
};

int Class::once(int by, const char *text) {
    for (int i = 0; i < 1000; i++) {
        value = value * 31 % 1000003 + text[i & 1];
    }
    return value += by;
}

int Class::twice(int by) {
    return value += by % 7;
}

int Class::twice(double by) {
    return value += by > 3;
}

}  // namespace ns

int main() {
    ns::Class it;
    int sum = 0;
    for (int i = 0; i < 100; i++) {
        sum += it.once(i, "ab") % 1000 + it.twice(i) % 1000 + it.twice(0.5 * i) % 1000;
    }
    std::printf("%d\n", sum);
    return 3;
}
