// Ends with what is in errno at its start, which C says is 0.
#include <errno.h>

int main(void) {
    return errno;
}
