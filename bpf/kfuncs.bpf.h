/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The kernel's functions that the scheduler calls, under the names of 6.12 and of later kernels:
 * each is weak, and the one that exists is called. Constants of the kernel's are here because their
 * types may lack in vmlinux.h.
 */
#ifndef DIMMER_KFUNCS_BPF_H
#define DIMMER_KFUNCS_BPF_H

#define DSQ_LOCAL 0x8000000000000002ULL
#define DSQ_LOCAL_ON 0xC000000000000000ULL
#define OPS_KEEP_BUILTIN_IDLE (1ULL << 0)
/*
 * Without it, a thread that is alone on its processor is kept there when its slice ends, and
 * enqueue() never asked.
 */
#define OPS_ENQ_LAST (1ULL << 1)
#define ENQ_LAST (1ULL << 41)
#define ENQ_WAKEUP 1ULL
#define KICK_IDLE 1
#define KICK_PREEMPT 2
#define TASK_STORAGE_CREATE 1
#define KTHREAD 0x00200000
#define CLOCK_MONOTONIC 1

extern s32 scx_bpf_create_dsq(u64 dsq_id, s32 node) __ksym;
extern void scx_bpf_dsq_insert(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags) __weak __ksym;
extern void scx_bpf_dispatch(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags) __weak __ksym;
extern bool scx_bpf_dsq_move_to_local(u64 dsq_id) __weak __ksym;
extern bool scx_bpf_consume(u64 dsq_id) __weak __ksym;
extern s32 scx_bpf_dsq_nr_queued(u64 dsq_id) __ksym;
extern void scx_bpf_kick_cpu(s32 cpu, u64 flags) __ksym;
extern bool scx_bpf_test_and_clear_cpu_idle(s32 cpu) __ksym;
extern s32 scx_bpf_task_cpu(const struct task_struct *p) __ksym;
extern const struct cpumask *scx_bpf_get_online_cpumask(void) __ksym;
extern const struct cpumask *scx_bpf_get_idle_cpumask(void) __ksym;
extern void scx_bpf_put_idle_cpumask(const struct cpumask *cpumask) __ksym;
extern void scx_bpf_put_cpumask(const struct cpumask *cpumask) __ksym;
extern bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *cpumask) __ksym;
/*
 * The processors that threads may be moved to: one that is going is left out before the kernel says
 * so to schedulers. In kernels whose symbols include data (CONFIG_KALLSYMS_ALL).
 */
extern const void __cpu_active_mask __weak __ksym;
/* The module's: it moves no thread by itself then. */
extern void dimmer_xcr0_taken(void) __weak __ksym;

static __always_inline void insert(struct task_struct *p, u64 dsq, u64 slice, u64 flags)
{
	if (bpf_ksym_exists(scx_bpf_dsq_insert))
		scx_bpf_dsq_insert(p, dsq, slice, flags);
	else if (bpf_ksym_exists(scx_bpf_dispatch))
		scx_bpf_dispatch(p, dsq, slice, flags);
}

static __always_inline bool take(u64 dsq)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move_to_local))
		return scx_bpf_dsq_move_to_local(dsq);
	if (bpf_ksym_exists(scx_bpf_consume))
		return scx_bpf_consume(dsq);
	return false;
}

#endif
