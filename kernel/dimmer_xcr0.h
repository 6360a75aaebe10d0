/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the files of the module share.
 *
 * main.c	loading, and what refuses it; /sys/kernel/dimmer_xcr0
 * narrow.c	which processors are narrow, and what XCR0 holds on each
 * hooks.c	where the kernel saves or restores registers, switches threads, or is called
 * stays.c	threads that have executed wide code: faults, moves and returns
 * affinity.c	moving threads by their affinity, where no scheduler of ours does it
 *
 * "Narrow" and "wide" are said of processors and of XCR0: a narrow value lacks the components of
 * registers that wide code needs, so that its first instruction faults.
 */
#ifndef DIMMER_XCR0_H
#define DIMMER_XCR0_H

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpumask.h>
#include <linux/percpu.h>
#include <linux/sched.h>

/* What happened since the module was loaded; each is a file below /sys/kernel/dimmer_xcr0. */
enum count {
	FAULTS,			/* wide code met a narrow processor */
	MOVES,			/* a thread that had faulted ran on a wide processor */
	MOVE_NS,		/* the time from the faults to that, summed up (ns) */
	RETURNS,		/* a thread that had been moved ran on a narrow processor again */
	ENDED_BY_CALLS,		/* phases ended by a system call */
	ENDED_BY_TIME,		/* phases ended by time, as far as this module ends them */
	ALLOWED,		/* wide code ran on a narrow processor: no other was allowed */
	LIMITS,			/* the same, after a thread had faulted at one place again and again */
	WITHOUT_SCHEDULER,	/* moves by affinity */
	SWITCHES,		/* XCR0 was written */
	NR_COUNTS
};

DECLARE_PER_CPU(u64 [NR_COUNTS], counts);

static __always_inline void add(enum count which, u64 number)
{
	this_cpu_add(counts[which], number);
}

static __always_inline void count(enum count which)
{
	add(which, 1);
}

/* main.c */
/* Whether KVM is loaded, which keeps its own idea of XCR0. */
bool has_kvm(void);

/* narrow.c */
DECLARE_PER_CPU(u64, xcr0_value);
DECLARE_PER_CPU(bool, xcr0_is_narrow);
extern u64 xcr0_full;
/* Whether XCR0 follows what the kernel does; else it stays narrow: a test's control. */
extern bool xcr0_follows;
extern struct cpumask wide_cpus;

int narrow_init(u64 components);
void narrow_exit(void);
int narrow_set(const struct cpumask *narrow);
/* All processors are wide from now on, until the module is loaded again. */
void narrow_end(void);
void narrow_get(struct cpumask *narrow);
void xcr0_widen(void);
void xcr0_narrow(void);
void xcr0_allow_current(void);
void xcr0_forget_allowed(void);

/* hooks.c */
int hooks_init(bool with_registers);
void hooks_exit(void);
unsigned long hooks_missed(void);

/* stays.c */
int stays_init(unsigned int limit, u64 timeout_ns);
void stays_exit(void);
/* The processor is about to run another thread, with interrupts disabled. */
void stays_switch(struct task_struct *next);
/* The current thread enters a system call. */
void stays_call(void);
void stays_fork(struct task_struct *parent, struct task_struct *child);
void stays_drop(struct task_struct *task);

/* affinity.c */
int affinity_init(void);
/* All affinities are given back, while forks are still seen, and nothing faults any more. */
void affinity_end(void);
/* After the last hook: a fork that it saw may have asked for an affinity to be given back. */
void affinity_exit(void);
/*
 * Moves the current thread to wide processors before it is in user mode again; whether that can be
 * done.
 */
bool affinity_move(void);
/* Affinities of ended stays are given back soon. */
void affinity_give_back(void);
/* Looks for stays that end by time. */
void affinity_watch(void);

#endif
