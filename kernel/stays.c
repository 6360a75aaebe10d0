// SPDX-License-Identifier: GPL-2.0
/*
 * Threads that have executed wide code: faults, moves and returns.
 *
 * Wide code on a narrow processor faults (#UD) before it does anything. The fault is swallowed, and
 * the thread moves to a wide processor, where the instruction is executed again. No instruction is
 * decoded: what no processor knows faults on the wide one again, and the program gets its signal.
 *
 * A scheduler of BPF decides where the thread goes. It attaches to dimmer_xcr0_begins() and
 * dimmer_xcr0_ends() and answers by dimmer_xcr0_taken(). Without an answer the thread is moved by
 * its affinity (affinity.c).
 */
#include "dimmer_xcr0.h"
#include "stays.h"

#include <linux/btf.h>
#include <linux/btf_ids.h>
#include <linux/hashtable.h>
#include <linux/kdebug.h>
#include <linux/sched/clock.h>
#include <linux/slab.h>
#include <asm/trapnr.h>

/*
 * One lock for the table: it is taken when a thread faults for the first time, and when it exits.
 */
static DEFINE_HASHTABLE(stays, 10);
static DEFINE_RAW_SPINLOCK(stays_lock);
static atomic_t nr_stays;
static unsigned int attempts_limit;
u64 stays_timeout_ns;

/* Whether a scheduler has answered on this processor. */
static DEFINE_PER_CPU(bool, taken);

/* Where the scheduler attaches. Their arguments are its information. */
noinline void dimmer_xcr0_begins(struct task_struct *task, unsigned long ip);
noinline void dimmer_xcr0_begins(struct task_struct *task, unsigned long ip)
{
	barrier_data(task);
}

noinline void dimmer_xcr0_ends(struct task_struct *task);
noinline void dimmer_xcr0_ends(struct task_struct *task)
{
	barrier_data(task);
}

__bpf_kfunc_start_defs();
/*
 * The scheduler's answer: it moves the thread when the thread gives up its processor, which is at
 * once.
 */
__bpf_kfunc void dimmer_xcr0_taken(void)
{
	this_cpu_write(taken, true);
}
__bpf_kfunc_end_defs();

BTF_KFUNCS_START(kfuncs)
BTF_ID_FLAGS(func, dimmer_xcr0_taken)
BTF_KFUNCS_END(kfuncs)

static const struct btf_kfunc_id_set kfunc_set = { .owner = THIS_MODULE, .set = &kfuncs };

/* Ends the thread's slice. */
static void give_up_processor(void)
{
#ifdef CONFIG_SCHED_CLASS_EXT
	current->scx.slice = 0;
#endif
	set_tsk_need_resched(current);
	set_preempt_need_resched();
}

struct stay *stays_find(struct task_struct *task)
{
	struct stay *stay;

	if (!atomic_read(&nr_stays))
		return NULL;
	hash_for_each_possible_rcu(stays, stay, node, (unsigned long)task)
		if (stay->task == task)
			return stay;
	return NULL;
}

struct stay *stays_add(struct task_struct *task)
{
	struct stay *stay = kzalloc(sizeof(*stay), GFP_ATOMIC | __GFP_NOWARN);
	unsigned long flags;

	if (!stay)
		return NULL;
	stay->task = task;
	raw_spin_lock_irqsave(&stays_lock, flags);
	hash_add_rcu(stays, &stay->node, (unsigned long)task);
	raw_spin_unlock_irqrestore(&stays_lock, flags);
	atomic_inc(&nr_stays);
	return stay;
}

void stays_drop(struct task_struct *task)
{
	struct stay *stay;
	unsigned long flags;

	rcu_read_lock();
	stay = stays_find(task);
	if (stay) {
		raw_spin_lock_irqsave(&stays_lock, flags);
		hash_del_rcu(&stay->node);
		raw_spin_unlock_irqrestore(&stays_lock, flags);
		atomic_dec(&nr_stays);
		affinity_forgets(stay);
		kfree_rcu(stay, rcu);
	}
	rcu_read_unlock();
}

void stays_each(bool (*act)(struct stay *stay, void *data), void *data)
{
	struct stay *stay;
	int bucket;

	rcu_read_lock();
	hash_for_each_rcu(stays, bucket, stay, node)
		if (act(stay, data))
			break;
	rcu_read_unlock();
}

void stays_switch(struct task_struct *next)
{
	struct stay *stay = stays_find(next);

	if (!stay)
		return;
	if (this_cpu_read(xcr0_is_narrow)) {
		if (stay->has_moved)
			count(RETURNS);
		stay->has_moved = false;
	} else if (stay->is_waiting) {
		count(MOVES);
		add(MOVE_NS, local_clock() - stay->since);
		stay->is_waiting = false;
		stay->has_moved = true;
		stay->attempts = 0;
	}
}

void stays_call(void)
{
	struct stay *stay;

	if (!atomic_read(&nr_stays))
		return;
	rcu_read_lock();
	stay = stays_find(current);
	if (stay && !READ_ONCE(stay->by_affinity))
		cpumask_clear(&stay->applied);
	if (stay && !stay->has_ended) {
		stay->has_ended = true;
		count(ENDED_BY_CALLS);
		if (stay->by_affinity) {
			affinity_give_back();
		} else {
			preempt_disable();
			this_cpu_write(taken, false);
			dimmer_xcr0_ends(current);
			if (this_cpu_read(taken) && !this_cpu_read(xcr0_is_narrow))
				give_up_processor();
			preempt_enable();
		}
	}
	rcu_read_unlock();
}

/*
 * A thread that is started by one on a wide processor must not keep the affinity that this one has
 * for a while.
 */
void stays_fork(struct task_struct *parent, struct task_struct *child)
{
	struct stay *stay, *own;

	rcu_read_lock();
	stay = stays_find(parent);
	if (stay && !cpumask_empty(&stay->applied) && cpumask_equal(&child->cpus_mask, &stay->applied)) {
		own = stays_add(child);
		if (own) {
			cpumask_copy(&own->saved, &stay->saved);
			cpumask_copy(&own->applied, &stay->applied);
			own->has_ended = true;
			affinity_takes(own);
			affinity_give_back();
		}
	}
	rcu_read_unlock();
}

/* Wide code runs here, until another thread does. */
static void allow(enum count why)
{
	count(why);
	xcr0_allow_current();
}

/* Runs with interrupts disabled since the fault, so XCR0 is what it was then. */
static void on_fault(unsigned long ip)
{
	struct stay *stay;

	count(FAULTS);
	stay = stays_find(current);
	/*
	 * An affinity that is being given back leaves out the wide processors for a moment, which
	 * is not the thread's.
	 */
	if (!cpumask_intersects(current->cpus_ptr, &wide_cpus) && !(stay && READ_ONCE(stay->by_affinity))) {
		/* The scheduler learns of it, and does not wait for a wide processor. */
		dimmer_xcr0_begins(current, ip);
		allow(ALLOWED);
		return;
	}
	if (!stay)
		stay = stays_add(current);
	if (!stay) {
		allow(ALLOWED);
		return;
	}
	stay->attempts = stay->ip == ip ? stay->attempts + 1 : 1;
	stay->ip = ip;
	stay->since = local_clock();
	stay->has_ended = false;
	stay->is_waiting = true;
	if (stay->attempts > attempts_limit) {
		pr_warn_ratelimited("%s (%d) faulted %u times at %lx and was never moved: allowed where it is\n",
				    current->comm, current->pid, attempts_limit, ip);
		stay->attempts = 0;
		allow(LIMITS);
		return;
	}
	this_cpu_write(taken, false);
	dimmer_xcr0_begins(current, ip);
	if (this_cpu_read(taken))
		give_up_processor();
	else if (!affinity_move())
		allow(ALLOWED);
}

static int on_die(struct notifier_block *block, unsigned long value, void *data)
{
	struct die_args *args = data;

	if (value != DIE_TRAP || args->trapnr != X86_TRAP_UD || !user_mode(args->regs))
		return NOTIFY_DONE;
	/* Where all of XCR0 is there, the instruction is really unknown. */
	if (this_cpu_read(xcr0_value) == xcr0_full)
		return NOTIFY_DONE;
	rcu_read_lock();
	on_fault(args->regs->ip);
	rcu_read_unlock();
	return NOTIFY_STOP;
}

static struct notifier_block die_block = { .notifier_call = on_die, .priority = 10 };

int stays_init(unsigned int limit, u64 timeout_ns)
{
	int ret;

	attempts_limit = limit;
	stays_timeout_ns = timeout_ns;
	ret = register_btf_kfunc_id_set(BPF_PROG_TYPE_TRACING, &kfunc_set);
	if (ret)
		pr_warn("no scheduler can answer (%d): threads are moved by their affinity\n", ret);
	return register_die_notifier(&die_block);
}

/* Nothing faults any more, and all hooks are gone. */
void stays_exit(void)
{
	struct hlist_node *next;
	struct stay *stay;
	int bucket;

	unregister_die_notifier(&die_block);
	hash_for_each_safe(stays, bucket, next, stay, node) {
		hash_del_rcu(&stay->node);
		kfree_rcu(stay, rcu);
	}
	/* Memory is given back by the kernel's code, not by this module's. */
	synchronize_rcu();
}
