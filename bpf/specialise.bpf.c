// SPDX-License-Identifier: GPL-2.0
/*
 * The scheduler of core specialisation (paper 003, section 3.2), for sched_ext of Linux 6.12 and later.
 *
 * It decides by the rules of crates/policy/src/specialise.rs, for one level: a processor is wide or narrow. Each has
 * two queues, for the threads that are at home on wide processors and for all others. A wide processor takes from the
 * first kind, its own before those of others, and only then from the second; a narrow one from the second alone.
 * Threads become wide when they fault, which the module dimmer_xcr0 tells, or when user space says so (`hints`).
 *
 * Its work grows with the number of processors: it looks at each of them where it looks for one.
 */
#define BPF_NO_KFUNC_PROTOTYPES
#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "kfuncs.bpf.h"
#include "shared.h"

char _license[] SEC("license") = "GPL";

/* The kernel's default slice, and how soon a thread is asked again that should leave but could not (a guess). */
#define SLICE_NS 20000000ULL
#define RETRY_NS 1000000ULL
/* How often ends of phases are looked at: a fourth of a phase (a guess). */
#define LOOK_NS 500000ULL
/* Every so often, a processor looks into the queues of others first, so that none is forgotten (a guess). */
#define OTHERS_FIRST 16

const volatile u32 nr_cpus = 1;
/* How long a phase lasts without another fault: 2 ms in the paper, section 3.3. */
const volatile u64 stay_ns = 2000000;
const volatile bool recording;

struct home {
	bool has_narrow;	/* what the thread's affinity allows */
	bool has_wide;
	bool is_wide;
	u8 class;		/* the thread's */
	bool is_none;		/* no allowed processor has its level: it may do what it asks for where it is */
	u32 level;		/* of the processors where it has rank 0; of all, if there is none */
};

struct thread {
	u64 until;		/* when its phase ends by time; 0: it has none */
	u64 began;		/* when it faulted; 0: it has arrived since */
	u8 base;		/* its class outside of phases */
	u8 hint;		/* the last hint that it follows */
	bool leaving;		/* its phase has ended on a wide processor */
	struct home queued;	/* what it was when it was put into a queue; of no level: it was in none */
};

struct processor {
	u64 until;		/* when the phase of the thread that runs here ends; 0: never */
	u32 dispatches;
	s32 runs;		/* the level of the thread that runs here; -1: none */
	s32 rank;		/* of the queue that the last thread came from; -1: it came directly */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cores);
} cores SEC(".maps");

struct hint_page {
	u8 hint[HINTS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 8);	/* the loader makes it fit the greatest number of a thread */
	__type(key, u32);
	__type(value, struct hint_page);
} hints SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, NR_COUNTS);
	__type(key, u32);
	__type(value, u64);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} decisions SEC(".maps");

struct stay_alarm {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct stay_alarm);
} alarms SEC(".maps");

static struct processor processors[MAX_CPUS];
static u32 alarm_is_set;
static u64 last_began;

s32 exit_kind;
char exit_message[128];

static __always_inline void add(u32 which, u64 number)
{
	u64 *value = bpf_map_lookup_elem(&counts, &which);

	if (value)
		__sync_fetch_and_add(value, number);
}

static __always_inline struct cores *the_cores(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&cores, &zero);
}

static __always_inline u32 level_of(struct cores *all, u32 cpu)
{
	return all->level[cpu & (MAX_CPUS - 1)];
}

static __always_inline struct processor *processor_of(u32 cpu)
{
	return &processors[cpu & (MAX_CPUS - 1)];
}

static __always_inline u64 queue_of(u32 cpu, u32 level)
{
	return cpu * 2 + level;
}

static __always_inline struct thread *thread_of(struct task_struct *p)
{
	return bpf_task_storage_get(&threads, p, 0, 0);
}

static __always_inline u8 *hint_of(struct task_struct *p)
{
	u32 pid = p->pid, number = pid / HINTS;
	struct hint_page *page = bpf_map_lookup_elem(&hints, &number);

	return page ? &page->hint[pid % HINTS] : NULL;
}

/* The thread follows what user space says, when that changes. */
static __always_inline void follow_hint(struct task_struct *p, struct thread *t)
{
	u8 *place = hint_of(p);
	u8 hint = place ? *place : HINT_NONE;

	if (hint == HINT_NONE || hint == t->hint)
		return;
	if (t->base == CLASS_WIDE || t->until)
		t->leaving = hint == HINT_NORMAL;
	if (t->until)
		add(ENDED_BY_HINT, 1);
	t->hint = hint;
	t->base = hint == HINT_WIDE ? CLASS_WIDE : CLASS_NORMAL;
	t->until = 0;
}

static __always_inline u32 class_of(struct task_struct *p, struct thread *t)
{
	if (!t)
		return CLASS_DEFAULT;
	follow_hint(p, t);
	if (t->until) {
		if (bpf_ktime_get_ns() < t->until)
			return CLASS_WIDE;
		t->until = 0;
		t->leaving = true;
		add(ENDED_BY_TIME, 1);
	}
	return t->base;
}

/* Of which levels the processors are that the thread's affinity allows: 1 for narrow, 2 for wide ones. */
__weak u32 levels_of(struct task_struct *p __arg_trusted)
{
	struct cores *all = the_cores();
	u32 cpu, levels = 0;

	if (!all)
		return 0;
	bpf_for(cpu, 0, nr_cpus)
		if (bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			levels |= level_of(all, cpu) ? 2 : 1;
	return levels;
}

static __always_inline struct home home_of(struct task_struct *p, u32 class)
{
	struct home home = { .is_wide = class == CLASS_WIDE, .class = class };
	u32 levels = levels_of(p);

	home.has_narrow = levels & 1;
	home.has_wide = levels & 2;
	if (home.is_wide)
		home.is_none = !home.has_wide;
	home.level = home.is_wide ? home.has_wide : !home.has_narrow;
	return home;
}

static __always_inline bool may_run(struct task_struct *p, u32 cpu)
{
	return bpf_cpumask_test_cpu(cpu, p->cpus_ptr);
}

static __always_inline u32 distance(u32 one, u32 other)
{
	return one > other ? one - other : other - one;
}

/*
 * What follows are global functions (weak, so that none is inlined), which the kernel verifies once, not for each call:
 * loading takes a tenth of the time.
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

/* Begins the record of a choice. What processors run is added by whoever chooses, as it reads it. */
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
 * The wide processor that is to look for work at once, because this thread is wide; -1: each runs wide threads. One
 * that runs nothing is preferred, then the nearest; if the thread's node has wide processors, one of these.
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

/* An allowed processor of this level for the queue: the one where the thread is, else the nearest. */
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
 * Processors that run nothing look for work. One that is about to be idle has not said so yet, so asking the idle
 * ones alone loses threads until the next event.
 */
__weak s32 kick_idle(struct task_struct *p __arg_trusted, u32 level)
{
	struct cores *all = the_cores();
	u32 cpu;

	if (!all)
		return 0;
	bpf_for(cpu, 0, nr_cpus) {
		if (processor_of(cpu)->runs >= 0 || !may_run(p, cpu))
			continue;
		if (level_of(all, cpu) >= level)
			scx_bpf_kick_cpu(cpu, 0);
	}
	return 0;
}

/* Whether the thread cannot leave its processor now. BPF programs count for the thread that they run in. */
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

SEC("struct_ops/select_cpu")
s32 BPF_PROG(specialise_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct cores *all = the_cores();
	struct home home;
	s32 cpu;

	if (!all)
		return prev_cpu;
	home = home_of(p, class_of(p, thread_of(p)));
	cpu = idle_for(p, &home, prev_cpu);
	if (cpu < 0)
		return prev_cpu;
	processor_of(cpu)->rank = -1;
	insert(p, DSQ_LOCAL, SLICE_NS, 0);
	return cpu;
}

SEC("struct_ops/enqueue")
void BPF_PROG(specialise_enqueue, struct task_struct *p, u64 flags)
{
	struct thread *t = thread_of(p);
	struct cores *all = the_cores();
	s32 from = scx_bpf_task_cpu(p), cpu;
	u64 slice = SLICE_NS;
	struct home home;

	if (!all || must_stay(p) || (p->nr_cpus_allowed == 1 && p->flags & KTHREAD)) {
		processor_of(from)->rank = -1;
		insert(p, DSQ_LOCAL, SLICE_NS, flags);
		if (flags & ENQ_LAST)
			scx_bpf_kick_cpu(from, 0);
		return;
	}
	home = home_of(p, class_of(p, t));
	if (home.is_none)
		add(STUCK, 1);
	if (!home.is_wide && home.level)
		add(PINNED, 1);

	/* A thread of the user's that is where it belongs and alone stays. */
	if (!(flags & ENQ_LAST) || level_of(all, from) != home.level) {
		cpu = idle_for(p, &home, from);
		if (cpu >= 0) {
			processor_of(cpu)->rank = -1;
			insert(p, DSQ_LOCAL_ON | cpu, SLICE_NS, flags);
			scx_bpf_kick_cpu(cpu, 0);
			return;
		}
	}
	if (flags & ENQ_LAST && may_run(p, from) && (home.is_none || level_of(all, from) >= home.level)) {
		/* Whoever asks for these must cause the next decision, or the processor idles with the thread queued. */
		if (level_of(all, from) > home.level)
			slice = RETRY_NS;
		add(LAST, 1);
		processor_of(from)->rank = -1;
		insert(p, DSQ_LOCAL, slice, flags);
		scx_bpf_kick_cpu(from, 0);
		return;
	}
	if (home.is_wide && !home.is_none) {
		cpu = to_interrupt(p, from);
		if (cpu >= 0) {
			if (t)
				t->queued = home;
			insert(p, queue_of(cpu, 1), SLICE_NS, flags);
			scx_bpf_kick_cpu(cpu, KICK_PREEMPT);
			return;
		}
	}
	cpu = place(p, home.level, home.is_none, from);
	if (cpu < 0) {
		insert(p, DSQ_LOCAL, SLICE_NS, flags);
		return;
	}
	if (t)
		t->queued = home;
	insert(p, queue_of(cpu, home.is_none ? 0 : home.level), slice, flags);
	kick_idle(p, home.level);
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
		if (take(queue_of(cpu, level))) {
			add(STOLEN, 1);
			return 1;
		}
	}
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

SEC("struct_ops/dispatch")
void BPF_PROG(specialise_dispatch, s32 cpu, struct task_struct *prev)
{
	struct processor *own = processor_of(cpu);
	struct cores *all = the_cores();
	bool others_first;
	u32 level;

	if (!all)
		return;
	level = level_of(all, cpu);
	others_first = ++own->dispatches % OTHERS_FIRST == 0;
	/*
	 * A narrow processor has such threads only if it was wide a moment ago. It runs them: some may run nowhere else,
	 * and those that are wide fault and move.
	 */
	own->rank = 0;
	if (!level && scx_bpf_dsq_nr_queued(queue_of(cpu, 1)) > 0) {
		own->rank = -1;
		if (take(queue_of(cpu, 1)))
			return;
		own->rank = 0;
	}
	if (take_level(cpu, level, others_first))
		return;
	own->rank = 1;
	if (level && take_level(cpu, 0, others_first))
		return;
	own->rank = -1;
}

static void record_taken(struct home *queued, u32 cpu, u32 level, s32 rank)
{
	struct record *record = bpf_ringbuf_reserve(&decisions, sizeof(*record), 0);

	if (!record)
		return;
	record->decision = TAKEN;
	record->cpu = cpu;
	record->level = level;
	record->class = queued->class;
	record->has_narrow = queued->has_narrow;
	record->has_wide = queued->has_wide;
	record->rank = rank;
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

SEC("struct_ops/running")
void BPF_PROG(specialise_running, struct task_struct *p)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct processor *own = processor_of(cpu);
	struct thread *t = thread_of(p);
	struct cores *all = the_cores();
	u32 class;

	if (!all)
		return;
	if (t && t->began && level_of(all, cpu)) {
		add(ARRIVED, 1);
		add(WAITED_NS, bpf_ktime_get_ns() - t->began);
		t->began = 0;
	}
	if (t && t->leaving && !level_of(all, cpu)) {
		add(LEFT, 1);
		t->leaving = false;
	}
	class = class_of(p, t);
	own->until = t && level_of(all, cpu) ? t->until : 0;
	own->runs = class == CLASS_WIDE;
	if (recording && t && own->rank >= 0 && (t->queued.has_narrow || t->queued.has_wide))
		record_taken(&t->queued, cpu, level_of(all, cpu), own->rank);
	if (t)
		t->queued.has_narrow = t->queued.has_wide = false;
	own->rank = -1;
}

SEC("struct_ops/stopping")
void BPF_PROG(specialise_stopping, struct task_struct *p, bool runnable)
{
	struct processor *own = processor_of(bpf_get_smp_processor_id());

	own->until = 0;
	own->runs = -1;
}

/* The kernel's tick, where the timer is late, and where user space has said something. */
SEC("struct_ops/tick")
void BPF_PROG(specialise_tick, struct task_struct *p)
{
	struct processor *own = processor_of(bpf_get_smp_processor_id());
	struct thread *t = thread_of(p);
	u8 *hint = t ? hint_of(p) : NULL;

	if (hint && *hint != HINT_NONE && *hint != t->hint)
		p->scx.slice = 0;
	if (own->until && bpf_ktime_get_ns() >= own->until)
		p->scx.slice = 0;
}

/* A thread begins with the class that the one has that starts it, outside of phases. */
SEC("struct_ops.s/init_task")
s32 BPF_PROG(specialise_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct thread *t = bpf_task_storage_get(&threads, p, 0, TASK_STORAGE_CREATE), *parent;

	if (!t)
		return -12 /* ENOMEM */;
	if (args->fork) {
		parent = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, 0);
		if (parent && parent->base != CLASS_DEFAULT) {
			t->base = parent->base;
			add(INHERITED, 1);
		}
	}
	return 0;
}

SEC("struct_ops/exit_task")
void BPF_PROG(specialise_exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
	u8 *hint = hint_of(p);

	if (hint)
		*hint = HINT_NONE;
}

/* Without these two, the kernel ends the scheduler when a processor goes or comes. */
SEC("struct_ops/cpu_online")
void BPF_PROG(specialise_cpu_online, s32 cpu)
{
	processor_of(cpu)->runs = -1;
}

SEC("struct_ops/cpu_offline")
void BPF_PROG(specialise_cpu_offline, s32 cpu)
{
	processor_of(cpu)->runs = 0;
}

static int look(void *map, u32 *key, struct stay_alarm *alarm)
{
	u64 now = bpf_ktime_get_ns();
	bool is_needed = now < last_began + 2 * stay_ns + 10 * LOOK_NS;
	u32 cpu;

	bpf_for(cpu, 0, nr_cpus) {
		struct processor *own = processor_of(cpu);
		u64 until = own->until;

		if (!until)
			continue;
		is_needed = true;
		if (now >= until) {
			own->until = 0;
			add(BY_TIMER, 1);
			scx_bpf_kick_cpu(cpu, KICK_PREEMPT);
		}
	}
	if (is_needed)
		bpf_timer_start(&alarm->timer, LOOK_NS, 0);
	else
		alarm_is_set = 0;
	return 0;
}

/* The kernel's scheduler classes for ordinary threads; what runs in real time is none of this one's. */
static __always_inline bool is_ours(struct task_struct *p)
{
	u32 policy = p->policy;

	return policy == 0 /* NORMAL */ || policy == 3 /* BATCH */ || policy == 5 /* IDLE */ || policy == 7 /* EXT */;
}

/* The current thread has met wide code on a narrow processor. */
SEC("fentry/dimmer_xcr0_begins")
int BPF_PROG(on_begins)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct thread *t = thread_of(p);
	u64 now = bpf_ktime_get_ns();
	struct stay_alarm *alarm;
	u32 zero = 0;

	if (!t || !is_ours(p))
		return 0;
	if (!t->until)
		add(BEGAN, 1);
	t->until = now + stay_ns;
	t->began = now;
	t->leaving = false;
	if (t->base == CLASS_DEFAULT)
		t->base = CLASS_NORMAL;
	last_began = now;
	alarm = bpf_map_lookup_elem(&alarms, &zero);
	if (alarm && !__sync_val_compare_and_swap(&alarm_is_set, 0, 1))
		bpf_timer_start(&alarm->timer, LOOK_NS, 0);
	if (bpf_ksym_exists(dimmer_xcr0_taken))
		dimmer_xcr0_taken();
	return 0;
}

/* The current thread enters a system call: who computes with wide registers rarely does. */
SEC("fentry/dimmer_xcr0_ends")
int BPF_PROG(on_ends)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct thread *t = thread_of(p);

	if (!t || !t->until)
		return 0;
	t->until = 0;
	t->leaving = true;
	add(ENDED_BY_CALL, 1);
	if (t->base != CLASS_WIDE && bpf_ksym_exists(dimmer_xcr0_taken))
		dimmer_xcr0_taken();
	return 0;
}

SEC("struct_ops.s/init")
s32 BPF_PROG(specialise_init)
{
	struct stay_alarm *alarm;
	u32 zero = 0, cpu;
	s32 ret;

	bpf_for(cpu, 0, nr_cpus) {
		processor_of(cpu)->runs = -1;
		ret = scx_bpf_create_dsq(queue_of(cpu, 0), -1);
		if (!ret)
			ret = scx_bpf_create_dsq(queue_of(cpu, 1), -1);
		if (ret)
			return ret;
	}
	alarm = bpf_map_lookup_elem(&alarms, &zero);
	if (!alarm)
		return -2 /* ENOENT */;
	bpf_timer_init(&alarm->timer, &alarms, CLOCK_MONOTONIC);
	return bpf_timer_set_callback(&alarm->timer, look);
}

SEC("struct_ops/exit")
void BPF_PROG(specialise_exit, struct scx_exit_info *info)
{
	exit_kind = BPF_CORE_READ(info, kind);
	bpf_probe_read_kernel_str(exit_message, sizeof(exit_message), BPF_CORE_READ(info, msg));
}

SEC(".struct_ops.link")
struct sched_ext_ops specialise = {
	.select_cpu = (void *)specialise_select_cpu,
	.enqueue = (void *)specialise_enqueue,
	.dispatch = (void *)specialise_dispatch,
	.running = (void *)specialise_running,
	.stopping = (void *)specialise_stopping,
	.tick = (void *)specialise_tick,
	.init_task = (void *)specialise_init_task,
	.exit_task = (void *)specialise_exit_task,
	.cpu_online = (void *)specialise_cpu_online,
	.cpu_offline = (void *)specialise_cpu_offline,
	.init = (void *)specialise_init,
	.exit = (void *)specialise_exit,
	.timeout_ms = 10000,
	.flags = OPS_ENQ_LAST,
	.name = "dimmer",
};
