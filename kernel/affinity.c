// SPDX-License-Identifier: GPL-2.0
/*
 * Moving threads by their affinity, where no scheduler of ours does it.
 *
 * A thread that faults may then run on wide processors alone, until its phase ends; programs see that if they ask for
 * their affinity meanwhile. Whoever sets it meanwhile is not overruled: then nothing is given back.
 */
#include "dimmer_xcr0.h"
#include "stays.h"

#include <linux/delay.h>
#include <linux/hrtimer.h>
#include <linux/sched/clock.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/task_work.h>
#include <linux/workqueue.h>

/* How often stays that may end by time are looked at: a fourth of the timeout. */
#define LOOKS 4

static struct workqueue_struct *queue;
static struct hrtimer timer;
/* Threads that have yet to move themselves. */
static atomic_t pending;
/* Stays whose affinity has not been given back. */
static atomic_t away;

static void move(struct callback_head *head)
{
	struct stay *stay;
	cpumask_var_t mask;

	if (!alloc_cpumask_var(&mask, GFP_KERNEL))
		goto out;
	rcu_read_lock();
	stay = stays_find(current);
	if (stay && !stay->by_affinity)
		cpumask_copy(&stay->saved, current->cpus_ptr);
	cpumask_and(mask, current->cpus_ptr, &wide_cpus);
	if (stay && !cpumask_empty(mask)) {
		cpumask_copy(&stay->applied, mask);
		if (!stay->by_affinity)
			atomic_inc(&away);
		smp_store_release(&stay->by_affinity, true);
	}
	rcu_read_unlock();
	if (stay && !cpumask_empty(mask)) {
		set_cpus_allowed_ptr(current, mask);
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

struct ended {
	struct task_struct *task;
	struct cpumask saved;
	struct cpumask applied;
};

static bool find_ended(struct stay *stay, void *data)
{
	struct ended *ended = data;

	if (!smp_load_acquire(&stay->by_affinity) || !stay->has_ended)
		return false;
	ended->task = get_task_struct(stay->task);
	cpumask_copy(&ended->saved, &stay->saved);
	cpumask_copy(&ended->applied, &stay->applied);
	stay->by_affinity = false;
	return true;
}

/* Gives back what ended stays took. First without the wide processors, so that the thread leaves them. */
static void give_back(struct work_struct *work)
{
	static struct ended ended;
	static struct cpumask narrow;

	for (;;) {
		ended.task = NULL;
		stays_each(find_ended, &ended);
		if (!ended.task)
			break;
		if (cpumask_equal(ended.task->cpus_ptr, &ended.applied)) {
			cpumask_andnot(&narrow, &ended.saved, &wide_cpus);
			if (!cpumask_empty(&narrow) && cpumask_intersects(&narrow, cpu_active_mask))
				set_cpus_allowed_ptr(ended.task, &narrow);
			set_cpus_allowed_ptr(ended.task, &ended.saved);
		}
		put_task_struct(ended.task);
		atomic_dec(&away);
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
	stays_each(end_by_time, NULL);
	if (!atomic_read(&away))
		return HRTIMER_NORESTART;
	hrtimer_forward_now(&timer, ns_to_ktime(stays_timeout_ns / LOOKS));
	return HRTIMER_RESTART;
}

void affinity_watch(void)
{
	if (!hrtimer_active(&timer))
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

/* Nothing faults any more, but threads are still hooked. */
void affinity_exit(void)
{
	while (atomic_read(&pending))
		msleep(1);
	/* The last of them may still be within the last line of move(). */
	synchronize_rcu_tasks();
	stays_each(end, NULL);
	affinity_give_back();
	hrtimer_cancel(&timer);
	destroy_workqueue(queue);
}
