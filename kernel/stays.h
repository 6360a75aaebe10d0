/* SPDX-License-Identifier: GPL-2.0 */
/* A thread's stay on wide processors, as stays.c keeps it and affinity.c ends it. */
#ifndef DIMMER_STAYS_H
#define DIMMER_STAYS_H

#include <linux/cpumask.h>
#include <linux/list.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>

struct stay {
	struct hlist_node node;
	struct rcu_head rcu;
	/* Valid as long as the stay is in the table: a thread that exits takes its stay out. */
	struct task_struct *task;
	/* When it last faulted (ns), and where. */
	u64 since;
	unsigned long ip;
	/* Faults there since it last ran on a wide processor. */
	unsigned int attempts;
	/*
	 * Whether it has faulted and not run on a wide processor since; whether it has, and not on
	 * a narrow one since.
	 */
	bool is_waiting;
	bool has_moved;
	/* Whether the phase has ended: by a call, by time. */
	bool has_ended;
	/*
	 * Whether its affinity is not its own: what that was, and what it was made. What it was
	 * made is kept until the next system call after it was given back: a thread that is being
	 * started may still have it.
	 */
	int by_affinity;
	struct cpumask saved;
	struct cpumask applied;
};

/* Calls `act` for each stay, under RCU, until it returns true. */
void stays_each(bool (*act)(struct stay *stay, void *data), void *data);
/* The stay of a thread, under RCU. */
struct stay *stays_find(struct task_struct *task);
/* A stay for a thread, in the table; %NULL without memory. */
struct stay *stays_add(struct task_struct *task);

/* affinity.c: the affinity of this stay's thread is `saved`, and to be given back. */
void affinity_takes(struct stay *stay);
void affinity_forgets(struct stay *stay);

extern u64 stays_timeout_ns;

#endif
