/*
 * Threads that migrate between fast and slow cores (paper 004, section 4.2). The environment
 * variables FAST_CPU and SLOW_CPU name the CPUs: lists such as `0` or `0-3,8`. docs/phases.md
 * describes the library.
 */
#ifndef ULTMIGRATION_H
#define ULTMIGRATION_H

/* Programs that were written for the paper's header rely on it. */
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ult_thread_type {
    ULT_FAST = 0,
    ULT_SLOW,
    ULT_TYPE_MAX
};

/* Registers the calling thread, which is on a fast core from then on. Each registers itself. */
void ult_register_klt(void);

/* Lets the calling thread run where it might before. */
void ult_unregister_klt(void);

/*
 * Brings the calling thread to a core of this kind. Does nothing if it is on one, and for threads
 * that are not registered. On a slow core, signals wait until the thread is on a fast one again.
 */
void ult_migrate(enum ult_thread_type type);

/* Whether the calling thread is registered. */
int ult_registered(void);

#ifdef __cplusplus
}
#endif

#endif
