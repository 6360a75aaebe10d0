/* SPDX-License-Identifier: GPL-2.0 */
/* What the scheduler and its loader share: the layout of maps and of recorded decisions. */
#ifndef DIMMER_SPECIALISE_SHARED_H
#define DIMMER_SPECIALISE_SHARED_H

/* Processors above this are not scheduled specially. A power of two. */
#define MAX_CPUS 256

/* What user space says of a thread, at the place of its number in the map `hints`. 0: nothing. */
enum hint { HINT_NONE, HINT_WIDE, HINT_NORMAL };

/* A value of the map `hints` has a page's worth of threads. */
#define HINTS 4096

/* The processors, as user space sets them. Level 1 is wide, 0 is narrow. */
struct cores {
	unsigned char level[MAX_CPUS];
	unsigned char node[MAX_CPUS];
};

/* What happened, in the map `counts`; the names are in the loader. */
enum count_of {
	BEGAN,			/* phases that faults began */
	ENDED_BY_CALL,
	ENDED_BY_TIME,
	ENDED_BY_HINT,
	ARRIVED,		/* threads of a phase that ran on a wide processor */
	LEFT,			/* threads whose phase had ended that ran on a narrow one */
	STOLEN,			/* threads taken from another processor's queue */
	INTERRUPTED,		/* wide processors that were to stop normal work */
	STUCK,			/* wide threads that may run on narrow processors alone */
	PINNED,			/* threads that may run on wide processors alone, and are not wide */
	LAST,			/* threads that were alone on their processor */
	BY_TIMER,		/* phases that the timer ended */
	WAITED_NS,		/* from faults to running on a wide processor, summed up (ns) */
	INHERITED,		/* threads that began with the class of the one that started them */
	WENT_HOME,		/* threads that went on where they had been before their phase */
	STAYED,			/* threads that gave way to wide ones, and stayed near their data */
	NR_COUNTS
};

/* What a thread is, as in the policy. */
enum thread_class { CLASS_DEFAULT, CLASS_NORMAL, CLASS_WIDE };

/* A decision, as the ring buffer `decisions` has it. */
enum decision {
	TAKEN,		/* a thread was taken from a queue */
	CHOSEN,		/* which processor a wide thread interrupts */
	PASSED,		/* whether what waits at a processor is left to it */
	WENT		/* where a thread goes on whose phase is over */
};

/* How many processors a recorded choice has. */
#define RECORDED_CPUS 16

struct record {
	unsigned int decision;
	int cpu;		/* TAKEN: the processor that takes; CHOSEN: where the thread ran; WENT: where its own code did */
	int level;		/* TAKEN: that processor's; PASSED: the queue's */
	int class;		/* TAKEN: the thread's */
	int has_narrow;		/* TAKEN: whether its affinity has narrow processors, and wide ones */
	int has_wide;
	int rank;		/* TAKEN: from which rank of queue */
	int chosen;		/* CHOSEN: which processor is interrupted, or -1; PASSED: 1 if it is; WENT: where to */
	int is_idle;		/* WENT: whether `cpu` had no work, as far as it was to be seen */
	int other;		/* WENT: another processor without work, or -1 */
	int running;		/* PASSED: the level of what runs there, or -1 */
	long long waited_ns;	/* PASSED: since a thread gave way there; -1: none has */
	int nr_cpus;		/* CHOSEN: of these, as they were; the thread's affinity decides which */
	signed char levels[RECORDED_CPUS];
	signed char nodes[RECORDED_CPUS];
	signed char runs[RECORDED_CPUS];	/* the level of what it runs; -1: nothing */
	signed char may[RECORDED_CPUS];
};

#endif
