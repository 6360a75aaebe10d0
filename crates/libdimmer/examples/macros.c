/* Everything that the macros accept, in every standard of C and C++ that they support. */
#include "dimmer.h"

#ifdef __cplusplus
extern "C" {
#endif
int four(void);
int digits(int tens, int ones);
void nothing(void);
#ifdef __cplusplus
}
#endif

DIMMER_SITE(named, "named");
DIMMER_SITE(joined, "na"
                    "med");
DIMMER_SITE(empty, "");
DIMMER_SITE(bare, );

int four(void) {
    DIMMER_REGION();
    return 4;
}

int digits(int tens, int ones) {
    DIMMER_REGION("");
    return 10 * tens + ones;
}

void nothing(void) {
    dimmer_mark();
}

int main(void) {
    DIMMER_REGION("main");
#ifndef DIMMER_DISABLE
    dimmer_exit(&named, dimmer_enter(&named));
    dimmer_exit(&joined, dimmer_enter(&joined));
    dimmer_exit(&empty, dimmer_enter(&empty));
    dimmer_exit(&bare, dimmer_enter(&bare));
#endif
    DIMMER_EXEC(nothing);
    return DIMMER_EXEC(four) + DIMMER_EXEC(digits, 1, DIMMER_EXEC(digits, 0, 2)) == 16 ? 0 : 1;
}
