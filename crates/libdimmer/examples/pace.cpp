/* Requests of clocks as objects: they nest, end with their block, however it is left, or in any
   order. */
#include <cstdio>
#include <memory>
#include <stdexcept>

#include "dimmer.hpp"

static void fail() {
    dimmer::pace slow(DIMMER_PACE_SLOW);
    std::printf("in the block %u\n", dimmer_pace_in_force());
    throw std::runtime_error("out of the block");
}

int main() {
    dimmer::pace fast(DIMMER_PACE_TURBO);
    {
        dimmer::pace half(50);
        std::printf("half %u\n", dimmer_pace_in_force());
    }
    try {
        fail();
    } catch (const std::runtime_error &) {
        std::printf("outside %u\n", dimmer_pace_in_force());
    }
    std::unique_ptr<dimmer::pace> first(new dimmer::pace(50)), second(new dimmer::pace(60));
    first.reset();
    std::printf("the second %u\n", dimmer_pace_in_force());
    second.reset();
    std::printf("fast again %u\n", dimmer_pace_in_force());
}
