// SPDX-License-Identifier: GPL-2.0
/*
 * Moving threads by their affinity, where no scheduler of ours does it.
 *
 * A thread that faults may then run on wide processors alone, until its phase ends; programs see
 * that if they ask for their affinity meanwhile. An affinity that is set meanwhile stays: then
 * nothing is given back.
 */
#include "dimmer_xcr0.h"
#include "stays.h"

#include <linux/delay.h>
#include <linux/hrtimer.h>
#include <linux/mutex.h>
#include <linux/sched/clock.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/task_work.h>
#include <linux/workqueue.h>

/* How often stays that may end by time are looked at: a fourth of the timeout. */
#define LOOKS 4

/* Between threads that move and the work that gives back. */
static DEFINE_MUTEX(affinity_lock);
static struct workqueue_struct *queue;
static struct hrtimer timer;
/*
 * Whether the timer is set. Under the lock, because a thread may move while the timer's function
 * finds no other thread to watch and ends: one of the two sees what the other did.
 */
static bool is_watching;
static DEFINE_RAW_SPINLOCK(watching_lock);
/* Threads that have yet to move themselves. */
static atomic_t pending;
/* Stays whose affinity has not been given back. */
static atomic_t away;

void affinity_takes(struct stay *stay)
{
	if (!xchg(&stay->by_affinity, 1))
		atomic_inc(&away);
}

void affinity_forgets(struct stay *stay)
{
	if (xchg(&stay->by_affinity, 0))
		atomic_dec(&away);
}

static void move(struct callback_head *head)
{
	struct stay *stay;
	cpumask_var_t mask;
	bool moves;

	if (!alloc_cpumask_var(&mask, GFP_KERNEL))
		goto out;
	mutex_lock(&affinity_lock);
	cpumask_and(mask, current->cpus_ptr, &wide_cpus);
	rcu_read_lock();
	stay = stays_find(current);
	moves = stay && !cpumask_empty(mask);
	if (moves) {
		/* An affinity that was set since it was moved stays. */
		if (!stay->by_affinity || !cpumask_equal(current->cpus_ptr, &stay->applied))
			cpumask_copy(&stay->saved, current->cpus_ptr);
		cpumask_copy(&stay->applied, mask);
		affinity_takes(stay);
	} else if (stay) {
		/* Another program has left it no wide processor: it may go on where it is, at its next fault. */
		affinity_forgets(stay);
	}
	rcu_read_unlock();
	if (moves)
		set_cpus_allowed_ptr(current, mask);
	mutex_unlock(&affinity_lock);
	if (moves) {
		count(WITHOUT_SCHEDULER);
		affinity_watch();
	}
	free_cpumask_var(mask);
out:
	kfree(head);
	atomic_dec(&pending);
}

bool affinity_move(void)
{
	struct callback_head *head = kmalloc(sizeof(*head), GFP_ATOMIC | __GFP_NOWARN);

	if (!head)
		return false;
	atomic_inc(&pending);
	init_task_work(head, move);
	if (task_work_add(current, head, TWA_RESUME)) {
		atomic_dec(&pending);
		kfree(head);
		return false;
	}
	return true;
}

static bool find_ended(struct stay *stay, void *data)
{
	struct task_struct **task = data;

	if (!READ_ONCE(stay->by_affinity) || !stay->has_ended)
		return false;
	*task = get_task_struct(stay->task);
	return true;
}

/* Gives a thread its affinity back: first without the wide processors, so that it leaves them. */
static void give_back_to(struct task_struct *task, struct cpumask *saved, struct cpumask *narrow)
{
	struct stay *stay;
	bool is_ours;

	rcu_read_lock();
	stay = stays_find(task);
	is_ours = stay && cpumask_equal(task->cpus_ptr, &stay->applied);
	if (is_ours)
		cpumask_copy(saved, &stay->saved);
	rcu_read_unlock();
	if (is_ours) {
		cpumask_andnot(narrow, saved, &wide_cpus);
		if (cpumask_intersects(narrow, cpu_active_mask))
			set_cpus_allowed_ptr(task, narrow);
		set_cpus_allowed_ptr(task, saved);
	}
	rcu_read_lock();
	stay = stays_find(task);
	if (stay)
		affinity_forgets(stay);
	rcu_read_unlock();
}

static void give_back(struct work_struct *work)
{
	static struct cpumask saved, narrow;
	struct task_struct *task;

	for (;;) {
		task = NULL;
		mutex_lock(&affinity_lock);
		stays_each(find_ended, &task);
		if (task)
			give_back_to(task, &saved, &narrow);
		mutex_unlock(&affinity_lock);
		if (!task)
			return;
		put_task_struct(task);
	}
}

static DECLARE_WORK(give_back_work, give_back);

void affinity_give_back(void)
{
	queue_work(queue, &give_back_work);
}

static bool end_by_time(struct stay *stay, void *data)
{
	if (stay->by_affinity && !stay->has_ended && local_clock() - stay->since >= stays_timeout_ns) {
		stay->has_ended = true;
		count(ENDED_BY_TIME);
		affinity_give_back();
	}
	return false;
}

static enum hrtimer_restart look(struct hrtimer *unused)
{
	bool goes_on;

	stays_each(end_by_time, NULL);
	raw_spin_lock(&watching_lock);
	goes_on = is_watching = atomic_read(&away);
	raw_spin_unlock(&watching_lock);
	if (!goes_on)
		return HRTIMER_NORESTART;
	hrtimer_forward_now(&timer, ns_to_ktime(stays_timeout_ns / LOOKS));
	return HRTIMER_RESTART;
}

void affinity_watch(void)
{
	unsigned long flags;
	bool was_watching;

	raw_spin_lock_irqsave(&watching_lock, flags);
	was_watching = is_watching;
	is_watching = true;
	raw_spin_unlock_irqrestore(&watching_lock, flags);
	if (!was_watching)
		hrtimer_start(&timer, ns_to_ktime(stays_timeout_ns / LOOKS), HRTIMER_MODE_REL);
}

static bool end(struct stay *stay, void *data)
{
	stay->has_ended = true;
	return false;
}

int affinity_init(void)
{
	hrtimer_init(&timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
	timer.function = look;
	queue = alloc_workqueue("dimmer_xcr0", WQ_HIGHPRI | WQ_UNBOUND, 1);
	return queue ? 0 : -ENOMEM;
}

void affinity_end(void)
{
	while (atomic_read(&pending))
		msleep(1);
	/* The last of them may still be within the last line of move(). */
	synchronize_rcu_tasks();
	stays_each(end, NULL);
	affinity_give_back();
	flush_workqueue(queue);
}

void affinity_exit(void)
{
	hrtimer_cancel(&timer);
	destroy_workqueue(queue);
}
