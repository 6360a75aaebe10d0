/* The same program in C++. */
#include "marks.c"
