/* SPDX-License-Identifier: GPL-2.0 */
/* Which processor a thread goes to, and from which queue a processor takes one. */
#ifndef DIMMER_CHOOSE_BPF_H
#define DIMMER_CHOOSE_BPF_H

static __always_inline u32 distance(u32 one, u32 other)
{
	return one > other ? one - other : other - one;
}

/*
 * What follows are global functions (weak, so that none is inlined), which the kernel verifies
 * once, not for each call: loading takes a tenth of the time.
 */

/* The nearest idle processor of a level, now claimed; -1: none. */
__weak s32 claim_idle(struct task_struct *p __arg_trusted, u32 level, s32 from)
{
	struct cores *all = the_cores();
	s32 best = -1;
	u32 cpu;

	if (!all)
		return -1;
	if (from >= 0 && level_of(all, from) == level && may_run(p, from) && scx_bpf_test_and_clear_cpu_idle(from))
		return from;
	bpf_for(cpu, 0, nr_cpus) {
		if (level_of(all, cpu) != level || !may_run(p, cpu))
			continue;
		if (best >= 0 && distance(cpu, from) >= distance(best, from))
			continue;
		if (processor_of(cpu)->runs < 0)
			best = cpu;
	}
	if (best >= 0 && scx_bpf_test_and_clear_cpu_idle(best))
		return best;
	bpf_for(cpu, 0, nr_cpus)
		if (level_of(all, cpu) == level && may_run(p, cpu) && scx_bpf_test_and_clear_cpu_idle(cpu))
			return cpu;
	return -1;
}

/*
 * Begins the record of a choice. to_interrupt() adds what processors run, as it reads it.
 */
static struct record *record_choice(struct task_struct *p, struct cores *all, s32 from)
{
	struct record *record = recording ? bpf_ringbuf_reserve(&decisions, sizeof(*record), 0) : NULL;
	u32 cpu;

	if (!record)
		return NULL;
	record->decision = CHOSEN;
	record->cpu = from;
	record->nr_cpus = nr_cpus < RECORDED_CPUS ? nr_cpus : RECORDED_CPUS;
	bpf_for(cpu, 0, RECORDED_CPUS) {
		record->levels[cpu & (RECORDED_CPUS - 1)] = level_of(all, cpu);
		record->nodes[cpu & (RECORDED_CPUS - 1)] = all->node[cpu & (RECORDED_CPUS - 1)];
		record->may[cpu & (RECORDED_CPUS - 1)] = may_run(p, cpu);
	}
	return record;
}

/*
 * The wide processor that is to look for work at once, because this thread is wide; -1: each runs
 * wide threads. One that runs nothing is preferred, then the nearest; if the thread's node has wide
 * processors, one of these.
 */
__weak s32 to_interrupt(struct task_struct *p __arg_trusted, s32 from)
{
	struct cores *all = the_cores();
	bool has_own = false, best_runs = false;
	struct record *record;
	u32 cpu, node;
	s32 best = -1;

	if (!all)
		return -1;
	node = all->node[from & (MAX_CPUS - 1)];
	record = record_choice(p, all, from);
	bpf_for(cpu, 0, nr_cpus)
		if (level_of(all, cpu) && may_run(p, cpu) && all->node[cpu & (MAX_CPUS - 1)] == node)
			has_own = true;
	bpf_for(cpu, 0, nr_cpus) {
		s32 runs = processor_of(cpu)->runs;

		if (record)
			record->runs[cpu & (RECORDED_CPUS - 1)] = runs;
		if (!level_of(all, cpu) || !may_run(p, cpu) || runs > 0)
			continue;
		if (has_own && all->node[cpu & (MAX_CPUS - 1)] != node)
			continue;
		if (best >= 0 && (runs >= 0) > best_runs)
			continue;
		if (best >= 0 && (runs >= 0) == best_runs && distance(cpu, from) >= distance(best, from))
			continue;
		best = cpu;
		best_runs = runs >= 0;
	}
	if (record) {
		record->chosen = best;
		bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	}
	if (best >= 0 && best_runs) {
		/* The next thread that asks finds it taken. Whatever runs there next says what it is. */
		processor_of(best)->runs = 1;
		add(INTERRUPTED, 1);
	}
	return best;
}

/*
 * An allowed processor of this level for the queue: the one where the thread is, else the nearest.
 */
__weak s32 place(struct task_struct *p __arg_trusted, u32 level, u32 any_level, s32 from)
{
	struct cores *all = the_cores();
	s32 best = -1;
	u32 cpu;

	if (!all)
		return -1;
	bpf_for(cpu, 0, nr_cpus) {
		if ((!any_level && level_of(all, cpu) != level) || !may_run(p, cpu))
			continue;
		if (best < 0 || distance(cpu, from) < distance(best, from))
			best = cpu;
	}
	return best;
}

/*
 * Processors that run nothing look for work, because a thread waits for `target` now. One that is
 * about to be idle has not said so yet, so asking the idle ones alone loses threads until the next
 * event; and one that has just looked in vain still seems to run what it ran, so `target` is asked
 * whatever it seems to do.
 */
__weak s32 kick_idle(struct task_struct *p __arg_trusted, u32 level, s32 target)
{
	struct cores *all = the_cores();
	u32 cpu;

	if (!all)
		return 0;
	bpf_for(cpu, 0, nr_cpus)
		if (processor_of(cpu)->runs < 0 && may_run(p, cpu) && level_of(all, cpu) >= level)
			scx_bpf_kick_cpu(cpu, 0);
	scx_bpf_kick_cpu(target, KICK_IDLE);
	return 0;
}

/*
 * Whether the thread cannot leave its processor now. BPF programs count for the thread that they
 * run in.
 */
static __always_inline bool must_stay(struct task_struct *p)
{
	struct task_struct *current = (void *)bpf_get_current_task_btf();
	u32 own = current->pid == p->pid;

	return bpf_core_field_exists(p->migration_disabled) && p->migration_disabled > own;
}

static __always_inline s32 idle_for(struct task_struct *p, struct home *home, s32 from)
{
	s32 cpu = claim_idle(p, home->level, from);

	/* What asks for nothing keeps a wide processor from being idle. */
	if (cpu < 0 && !home->is_wide && !home->level)
		cpu = claim_idle(p, 1, from);
	return cpu;
}

/* The processor near which a thread goes on: if its phase is over, the one where it was before. */
static __always_inline s32 goes_on_near(struct task_struct *p, struct thread *t, struct home *home, s32 from)
{
	struct cores *all = the_cores();

	if (!all || !t || !t->leaving || home->level || t->own < 0 || level_of(all, t->own))
		return from;
	return may_run(p, t->own) ? t->own : from;
}

static __always_inline bool is_idle(u32 cpu)
{
	const struct cpumask *idle = scx_bpf_get_idle_cpumask();
	bool found = bpf_cpumask_test_cpu(cpu, idle);

	scx_bpf_put_idle_cpumask(idle);
	return found;
}

/* What is known of a processor before a thread may go there. */
struct seen {
	bool was_idle;
	u32 started;
};

static __always_inline struct seen look_at(u32 cpu)
{
	struct seen seen = { .started = READ_ONCE(processor_of(cpu)->started) };

	if (recording)
		seen.was_idle = is_idle(cpu);
	return seen;
}

/*
 * Records where a thread goes on whose phase is over. `own` had no work if the thread has got it,
 * or if it was without work before the choice and after it, and nothing has run there in between.
 */
static __always_inline void record_went(s32 own, struct seen seen, s32 claimed, s32 went)
{
	struct record *record = recording ? bpf_ringbuf_reserve(&decisions, sizeof(*record), 0) : NULL;
	bool stayed_idle;

	if (!record)
		return;
	stayed_idle = seen.was_idle && is_idle(own) && READ_ONCE(processor_of(own)->started) == seen.started;
	record->decision = WENT;
	record->cpu = own;
	record->is_idle = claimed == own || stayed_idle;
	record->other = claimed == own ? -1 : claimed;
	record->chosen = went;
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

/*
 * A thread that gave way to a wide one has its data in that processor's caches for so long: Linux's
 * default (sched_migration_cost), as in the policy.
 */
#define CACHE_HOT_NS 500000ULL

/*
 * Whether what waits at a processor, behind a wide thread, is to stay there: by when a thread gave
 * way, and by what runs.
 */
static __always_inline bool stays_near(u64 gave_way, s32 runs, u64 now)
{
	return gave_way && runs > 0 && now < gave_way + CACHE_HOT_NS;
}

/* Whether another processor passes over what waits in this queue. */
static __always_inline bool passes(u32 cpu, u32 level)
{
	struct record *record = recording ? bpf_ringbuf_reserve(&decisions, sizeof(*record), 0) : NULL;
	u64 gave_way = READ_ONCE(processor_of(cpu)->gave_way), now = bpf_ktime_get_ns();
	s32 runs = READ_ONCE(processor_of(cpu)->runs);
	bool passed = !level && stays_near(gave_way, runs, now);

	if (record) {
		record->decision = PASSED;
		record->level = level;
		record->running = runs;
		/* The clocks of two processors may differ by a little. */
		record->waited_ns = !gave_way ? -1 : now < gave_way ? 0 : now - gave_way;
		record->chosen = passed;
		bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	}
	return passed;
}

/* Takes from the queues of other processors: those of the own node, or those of other nodes. */
__weak s32 steal(u32 own, u32 level, u32 from_own_node)
{
	struct cores *all = the_cores();
	u32 i;

	if (!all)
		return 0;
	bpf_for(i, 1, nr_cpus) {
		u32 cpu = own + i;
		u32 is_own_node;

		if (cpu >= nr_cpus)
			cpu -= nr_cpus;
		is_own_node = all->node[cpu & (MAX_CPUS - 1)] == all->node[own & (MAX_CPUS - 1)];
		if (is_own_node != from_own_node || scx_bpf_dsq_nr_queued(queue_of(cpu, level)) <= 0)
			continue;
		if (passes(cpu, level))
			continue;
		if (take(queue_of(cpu, level))) {
			add(STOLEN, 1);
			return 1;
		}
	}
	return 0;
}

/* Takes what was left in the queues of processors that went. */
__weak s32 take_left(u32 unused)
{
	u32 cpu;

	bpf_for(cpu, 0, nr_cpus) {
		if (!processor_of(cpu)->is_offline)
			continue;
		if (take(queue_of(cpu, 0)) || take(queue_of(cpu, 1)))
			return 1;
	}
	return 0;
}

__weak s32 has_narrow(u32 unused)
{
	struct cores *all = the_cores();
	u32 cpu;

	if (!all)
		return 0;
	bpf_for(cpu, 0, nr_cpus)
		if (!level_of(all, cpu) && !processor_of(cpu)->is_offline)
			return 1;
	return 0;
}

/* Takes a thread that is at home on this level, wherever it waits. */
static __always_inline bool take_level(u32 cpu, u32 level, bool others_first)
{
	if (others_first && steal(cpu, level, 1))
		return true;
	if (take(queue_of(cpu, level)))
		return true;
	return steal(cpu, level, 1) || steal(cpu, level, 0);
}

#endif
