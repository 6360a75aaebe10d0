/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Phases: a fault begins one, or a function or an event that the administrator has named; a system
 * call or time ends it.
 */
#ifndef DIMMER_PHASES_BPF_H
#define DIMMER_PHASES_BPF_H

/* How often ends of phases are looked at: a fourth of a phase (a guess). */
#define LOOK_NS 500000ULL

static int look(void *map, u32 *key, struct stay_alarm *alarm)
{
	u64 now = bpf_ktime_get_ns();
	bool is_needed = now < last_began + 2 * stay_ns + 10 * LOOK_NS;
	bool has_left = false;
	u32 cpu;

	bpf_for(cpu, 0, nr_cpus) {
		struct processor *own = processor_of(cpu);
		u64 until = own->until;

		if (own->gave_way) {
			is_needed = true;
			if (!stays_near(own->gave_way, own->runs, now)) {
				own->gave_way = 0;
				has_left = true;
			}
		}
		if (own->asks) {
			own->asks = false;
			scx_bpf_kick_cpu(cpu, KICK_PREEMPT);
		}
		if (!until)
			continue;
		is_needed = true;
		if (now >= until) {
			own->until = 0;
			add(BY_TIMER, 1);
			scx_bpf_kick_cpu(cpu, KICK_PREEMPT);
		}
	}
	/* What waited near its data no longer has to: processors without work look for it. */
	bpf_for(cpu, 0, nr_cpus)
		if (has_left && processor_of(cpu)->runs < 0)
			scx_bpf_kick_cpu(cpu, 0);
	if (is_needed)
		bpf_timer_start(&alarm->timer, LOOK_NS, 0);
	else
		alarm_is_set = 0;
	return 0;
}

/*
 * The kernel's scheduler classes for ordinary threads; what runs in real time is none of this
 * one's.
 */
static __always_inline bool is_ours(struct task_struct *p)
{
	u32 policy = p->policy;

	return policy == 0 /* NORMAL */ || policy == 3 /* BATCH */ || policy == 5 /* IDLE */ || policy == 7 /* EXT */;
}

/* Begins or prolongs a phase of the current thread; whether the thread is this scheduler's. */
static __always_inline bool begin_phase(struct task_struct *p, struct thread *t)
{
	u64 now = bpf_ktime_get_ns();

	if (!t || !is_ours(p))
		return false;
	if (!t->until) {
		add(BEGAN, 1);
		t->began = now;
	}
	t->until = now + stay_ns;
	t->leaving = false;
	if (t->base == CLASS_DEFAULT)
		t->base = CLASS_NORMAL;
	last_began = now;
	return true;
}

static __always_inline void set_alarm(void)
{
	u32 zero = 0;
	struct stay_alarm *alarm = bpf_map_lookup_elem(&alarms, &zero);

	if (alarm && !__sync_val_compare_and_swap(&alarm_is_set, 0, 1))
		bpf_timer_start(&alarm->timer, LOOK_NS, 0);
}

/* The current thread has met wide code on a narrow processor. */
SEC("fentry/dimmer_xcr0_begins")
int BPF_PROG(on_begins)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct thread *t = thread_of(p);

	if (!begin_phase(p, t))
		return 0;
	t->began = bpf_ktime_get_ns();
	set_alarm();
	if (bpf_ksym_exists(dimmer_xcr0_taken))
		dimmer_xcr0_taken();
	return 0;
}

/*
 * The current thread is where wide code is. Programs of these kinds can neither ask a processor to
 * look nor set a timer, so the thread goes at the next look, or at the next tick if nothing looks.
 */
static __always_inline int meets_wide_code(void)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct processor *own = processor_of(bpf_get_smp_processor_id());
	struct cores *all = the_cores();

	if (all && begin_phase(p, thread_of(p)) && !own->runs && !level_of(all, bpf_get_smp_processor_id()))
		own->asks = true;
	return 0;
}

SEC("uprobe")
int on_function(struct pt_regs *registers)
{
	return meets_wide_code();
}

SEC("perf_event")
int on_event(struct bpf_perf_event_data *data)
{
	return meets_wide_code();
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

#endif
