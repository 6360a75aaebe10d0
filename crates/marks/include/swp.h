/*
 * Marks between the phases of a program (paper 004, section 4.1). The library decides what they
 * do, and the loader chooses it: libswp measures, libswp_migrate migrates, libswp_dummy does
 * nothing. docs/phases.md describes all three.
 */
#ifndef SWP_H
#define SWP_H

#ifdef __cplusplus
extern "C" {
#endif

/* A mark of this function and line. Use it as a statement: `SWP_MARK;` */
#define SWP_MARK swp_mark(__func__, __FILE__ ":" SWP_STRINGIZE(__LINE__))
#define SWP_STRINGIZE(x) SWP_DO_STRINGIZE(x)
#define SWP_DO_STRINGIZE(x) #x

/* Marks count from here on, those of all threads. */
void swp_init(void);

/*
 * A mark of this name and position; `position` may be NULL. Costs some nanoseconds if both texts
 * are constants, otherwise it allocates. Any thread may call it.
 */
void swp_mark(const char *id, const char *position);

/* Ends what swp_init() has started. libswp prints the control-flow graph. */
void swp_deinit(void);

#ifdef __cplusplus
}
#endif

#endif
