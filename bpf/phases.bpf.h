/* SPDX-License-Identifier: GPL-2.0 */
/* Phases: a fault begins one, a system call or time ends it. */
#ifndef DIMMER_PHASES_BPF_H
#define DIMMER_PHASES_BPF_H

/* How often ends of phases are looked at: a fourth of a phase (a guess). */
#define LOOK_NS 500000ULL

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

/*
 * The kernel's scheduler classes for ordinary threads; what runs in real time is none of this
 * one's.
 */
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

#endif
