// SPDX-License-Identifier: GPL-2.0
/*
 * The scheduler of core specialisation (paper 003, section 3.2), for sched_ext of Linux 6.12 and
 * later.
 *
 * It decides by the rules of crates/policy/src/specialise.rs, for one level: a processor is wide or
 * narrow. Each has two queues, for the threads that are at home on wide processors and for all
 * others. A wide processor takes from the first kind, its own before those of others, and only then
 * from the second; a narrow one from the second alone. Threads become wide when they fault, which
 * the module dimmer_xcr0 tells, or when user space says so (`hints`).
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
#include "state.bpf.h"
#include "choose.bpf.h"
#include "phases.bpf.h"

char _license[] SEC("license") = "GPL";

/*
 * The kernel's default slice, and how soon a thread is asked again that should leave but could not
 * (a guess).
 */
#define SLICE_NS 20000000ULL
#define RETRY_NS 1000000ULL
/*
 * Every so often, a processor looks into the queues of others first, so that none is forgotten (a
 * guess).
 */
#define OTHERS_FIRST 16

SEC("struct_ops/select_cpu")
s32 BPF_PROG(specialise_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct thread *t = thread_of(p);
	struct cores *all = the_cores();
	struct home home;
	s32 near, cpu;

	if (!all)
		return prev_cpu;
	home = home_of(p, class_of(p, t));
	near = goes_on_near(p, t, &home, prev_cpu);
	cpu = idle_for(p, &home, near);
	/* enqueue() looks again, and then has the thread wait. */
	if (cpu < 0)
		return prev_cpu;
	if (near != prev_cpu && cpu == near)
		add(WENT_HOME, 1);
	processor_of(cpu)->rank = -1;
	insert(p, DSQ_LOCAL, SLICE_NS, 0);
	return cpu;
}

/* Whether the thread leaves this processor only because a wide one waits for it. */
static __always_inline bool gives_way(struct task_struct *p, struct thread *t, struct home *home, s32 from, u64 flags)
{
	struct cores *all = the_cores();

	if (!all || !t || t->leaving || home->level || flags & (ENQ_WAKEUP | ENQ_LAST))
		return false;
	return level_of(all, from) && may_run(p, from) && scx_bpf_dsq_nr_queued(queue_of(from, 1)) > 0;
}

SEC("struct_ops/enqueue")
void BPF_PROG(specialise_enqueue, struct task_struct *p, u64 flags)
{
	struct thread *t = thread_of(p);
	struct cores *all = the_cores();
	s32 from = scx_bpf_task_cpu(p), near, cpu;
	struct seen seen;
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

	/*
	 * A thread that gives way to a wide one stays near its data, as the wide one leaves soon,
	 * and without this the processor that it left takes this thread meanwhile.
	 */
	if (t && gives_way(p, t, &home, from, flags)) {
		add(STAYED, 1);
		processor_of(from)->gave_way = bpf_ktime_get_ns();
		t->queued = home;
		insert(p, queue_of(from, 0), SLICE_NS, flags);
		set_alarm();
		return;
	}
	near = goes_on_near(p, t, &home, from);
	seen = look_at(near);

	/* A thread of the user's that is where it belongs and alone stays. */
	if (!(flags & ENQ_LAST) || level_of(all, from) != home.level) {
		cpu = idle_for(p, &home, near);
		if (cpu >= 0) {
			if (near != from) {
				record_went(near, seen, cpu, cpu);
				add(WENT_HOME, cpu == near);
			}
			processor_of(cpu)->rank = -1;
			insert(p, DSQ_LOCAL_ON | cpu, SLICE_NS, flags);
			scx_bpf_kick_cpu(cpu, 0);
			return;
		}
	}
	if (flags & ENQ_LAST && may_run(p, from) && (home.is_none || level_of(all, from) >= home.level)) {
		/*
		 * A scheduler that asks for these must cause the next decision, or the processor
		 * idles with the thread queued.
		 */
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
	cpu = place(p, home.level, home.is_none, near);
	if (cpu < 0) {
		insert(p, DSQ_LOCAL, SLICE_NS, flags);
		return;
	}
	if (t)
		t->queued = home;
	if (near != from)
		record_went(near, seen, -1, cpu);
	insert(p, queue_of(cpu, home.is_none ? 0 : home.level), slice, flags);
	kick_idle(p, home.level, cpu);
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
	/*
	 * The kernel gives all that a going processor takes to others, until nothing is left. If it
	 * came back to this one's queues each time, it would never run: not even what ends a grace
	 * period of RCU, for which the processor waits before it goes.
	 */
	own->is_offline = !is_active(cpu);
	level = level_of(all, cpu);
	others_first = ++own->dispatches % OTHERS_FIRST == 0;
	/*
	 * A narrow processor has such threads only if it was wide a moment ago. It runs them: some
	 * may run nowhere else, and those that are wide fault and move.
	 */
	own->rank = -1;
	if (others_first && take_left(0))
		return;
	/*
	 * Where no narrow processor is online, all threads are at home here, and both kinds have
	 * their turns.
	 */
	if (level && own->dispatches % 2 && !has_narrow(0) && take_level(cpu, 0, others_first))
		return;
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
	own->started++;
	class = class_of(p, t);
	own->until = t && level_of(all, cpu) ? t->until : 0;
	own->runs = class == CLASS_WIDE;
	if (t && class != CLASS_WIDE)
		t->own = cpu;
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
	if (own->asks) {
		own->asks = false;
		p->scx.slice = 0;
		set_alarm();
	}
}

/* A thread begins with the class that the one has that starts it, outside of phases. */
SEC("struct_ops.s/init_task")
s32 BPF_PROG(specialise_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct thread *t = bpf_task_storage_get(&threads, p, 0, TASK_STORAGE_CREATE), *parent;

	if (!t)
		return -12 /* ENOMEM */;
	t->own = -1;
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
	processor_of(cpu)->is_offline = false;
}

SEC("struct_ops/cpu_offline")
void BPF_PROG(specialise_cpu_offline, s32 cpu)
{
	processor_of(cpu)->is_offline = true;
	processor_of(cpu)->until = 0;
}

SEC("struct_ops.s/init")
s32 BPF_PROG(specialise_init)
{
	const struct cpumask *online = scx_bpf_get_online_cpumask();
	struct stay_alarm *alarm;
	u32 zero = 0, cpu;
	s32 ret;

	bpf_for(cpu, 0, nr_cpus) {
		processor_of(cpu)->runs = -1;
		processor_of(cpu)->is_offline = !bpf_cpumask_test_cpu(cpu, online);
	}
	scx_bpf_put_cpumask(online);
	bpf_for(cpu, 0, nr_cpus) {
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
