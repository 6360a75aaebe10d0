/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the scheduler knows of threads and processors: its maps, classes, and where a thread is at
 * home.
 */
#ifndef DIMMER_STATE_BPF_H
#define DIMMER_STATE_BPF_H

/* Reads memory once that another processor may write meanwhile. */
#define READ_ONCE(place) (*(const volatile typeof(place) *)&(place))

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
	s32 own;		/* where it ran last outside of a phase; -1: nowhere */
	bool leaving;		/* its phase has ended on a wide processor */
	struct home queued;	/* what it was when it was put into a queue; of no level: it was in none */
};

struct processor {
	u64 until;		/* when the phase of the thread that runs here ends; 0: never */
	u32 dispatches;
	s32 runs;		/* the level of the thread that runs here; -1: none */
	s32 rank;		/* of the queue that the last thread came from; -1: it came directly */
	bool is_offline;
	u32 started;		/* how often a thread has begun to run here */
	u64 gave_way;		/* when a thread last gave way here to a wide one, and stayed; 0: none has */
	bool asks;		/* the thread that runs here has begun a phase, and nothing has moved it */
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

static __always_inline bool is_active(u32 cpu)
{
	const u64 *mask = &__cpu_active_mask;
	u64 word;

	if (!mask || bpf_probe_read_kernel(&word, sizeof(word), mask + (cpu & (MAX_CPUS - 1)) / 64))
		return true;
	return word >> cpu % 64 & 1;
}

static __always_inline bool may_run(struct task_struct *p, u32 cpu)
{
	return !processor_of(cpu)->is_offline && bpf_cpumask_test_cpu(cpu, p->cpus_ptr);
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

/*
 * Of which levels the processors are that are online and that the thread may run on: 1 for narrow,
 * 2 for wide ones.
 */
__weak u32 levels_of(struct task_struct *p __arg_trusted)
{
	struct cores *all = the_cores();
	u32 cpu, levels = 0;

	if (!all)
		return 0;
	bpf_for(cpu, 0, nr_cpus)
		if (may_run(p, cpu))
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

#endif
