// SPDX-License-Identifier: GPL-2.0
/*
 * Which processors are narrow, and what XCR0 holds on each.
 *
 * XCR0 is narrow in user mode alone. The kernel saves and restores all registers of a thread by
 * XSAVE and XRSTOR, and XRSTOR faults if what was saved has a component that XCR0 lacks; so XCR0 is
 * full whenever the kernel does that. hooks.c says when.
 *
 * The kernel writes XCR0 where a processor comes (comes()), and on the one that is left where the
 * machine sleeps, when it wakes: before that it has begun to use these registers
 * (kernel_fpu_begin), so XCR0 is known to be full.
 */
#include "dimmer_xcr0.h"

#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/mutex.h>
#include <linux/workqueue.h>
#include <asm/fpu/api.h>
#include <asm/fpu/xcr.h>

/* What XCR0 holds: full, unless user mode is narrow here. */
DEFINE_PER_CPU(u64, xcr0_value);
/* Whether user mode is to be narrow here. */
DEFINE_PER_CPU(bool, xcr0_is_narrow);
/*
 * The thread that may execute wide code here, for as long as it runs here; compared, never
 * followed.
 */
static DEFINE_PER_CPU(struct task_struct *, allowed);

u64 xcr0_full;
/* Processors that are online and not narrow. */
struct cpumask wide_cpus;
static u64 xcr0_narrowed;
static struct cpumask narrow_cpus;
static DEFINE_MUTEX(narrow_lock);
/* Whether no processor may be narrow any more, under the lock. */
static bool stays_wide;
static int hotplug_state = -1;

static __always_inline void write_xcr0(u64 value)
{
	xsetbv(XCR_XFEATURE_ENABLED_MASK, value);
	this_cpu_write(xcr0_value, value);
	count(SWITCHES);
}

/* With interrupts disabled, as all that follows. */
void notrace xcr0_widen(void)
{
	if (this_cpu_read(xcr0_value) != xcr0_full)
		write_xcr0(xcr0_full);
}

/* The processor is about to return to user mode, with the thread's registers in place. */
void xcr0_narrow(void)
{
	if (this_cpu_read(xcr0_is_narrow) && this_cpu_read(xcr0_value) == xcr0_full &&
	    this_cpu_read(allowed) != current)
		write_xcr0(xcr0_narrowed);
}

void xcr0_allow_current(void)
{
	this_cpu_write(allowed, current);
	xcr0_widen();
}

void xcr0_forget_allowed(void)
{
	this_cpu_write(allowed, NULL);
}

/*
 * A processor has come. Runs there, in a thread of the kernel's: the thread of the user's that is
 * next passes the hooks, which make XCR0 what it is to be.
 */
static int comes(unsigned int cpu)
{
	unsigned long flags;
	u64 found;

	local_irq_save(flags);
	found = xgetbv(XCR_XFEATURE_ENABLED_MASK);
	this_cpu_write(xcr0_value, xcr0_full);
	this_cpu_write(allowed, NULL);
	this_cpu_write(xcr0_is_narrow, found == xcr0_full && cpumask_test_cpu(cpu, &narrow_cpus));
	if (!this_cpu_read(xcr0_is_narrow))
		cpumask_set_cpu(cpu, &wide_cpus);
	local_irq_restore(flags);
	if (found != xcr0_full)
		pr_err("processor %u has XCR0 %llx instead of %llx and stays wide\n", cpu, found, xcr0_full);
	return 0;
}

static int goes(unsigned int cpu)
{
	unsigned long flags;

	local_irq_save(flags);
	this_cpu_write(xcr0_is_narrow, false);
	cpumask_clear_cpu(cpu, &wide_cpus);
	xcr0_widen();
	local_irq_restore(flags);
	return 0;
}

/*
 * Runs on the processor, in a thread of the kernel's, so the thread of the user's that ran there is
 * switched to again and passes the hooks.
 */
static long apply(void *unused)
{
	unsigned int cpu = raw_smp_processor_id();
	unsigned long flags;

	local_irq_save(flags);
	this_cpu_write(xcr0_is_narrow, cpumask_test_cpu(cpu, &narrow_cpus));
	cpumask_assign_cpu(cpu, &wide_cpus, !this_cpu_read(xcr0_is_narrow));
	xcr0_widen();
	if (!xcr0_follows && this_cpu_read(xcr0_is_narrow))
		write_xcr0(xcr0_narrowed);
	local_irq_restore(flags);
	return 0;
}

/**
 * narrow_set() - makes these processors narrow, and all others wide
 * @narrow: the set; processors that are not there yet count when they come
 *
 * Return: -EINVAL if no processor that is online would be wide; -EBUSY if one would be narrow,
 * and KVM is or was there.
 */
int narrow_set(const struct cpumask *narrow)
{
	int cpu, ret = 0;

	mutex_lock(&narrow_lock);
	cpus_read_lock();
	/* KVM may have come before its coming was watched for. */
	if (!cpumask_empty(narrow) && (stays_wide || has_kvm()))
		ret = -EBUSY;
	else if (!cpumask_empty(narrow) && cpumask_subset(cpu_online_mask, narrow))
		ret = -EINVAL;
	if (!ret) {
		cpumask_copy(&narrow_cpus, narrow);
		for_each_online_cpu(cpu)
			work_on_cpu(cpu, apply, NULL);
	}
	cpus_read_unlock();
	mutex_unlock(&narrow_lock);
	if (ret == -EBUSY)
		pr_err("refused: KVM is or was loaded, so all processors stay wide until this module is loaded again\n");
	return ret;
}

void narrow_end(void)
{
	mutex_lock(&narrow_lock);
	stays_wide = true;
	mutex_unlock(&narrow_lock);
	narrow_set(cpu_none_mask);
}

void narrow_get(struct cpumask *narrow)
{
	mutex_lock(&narrow_lock);
	cpumask_copy(narrow, &narrow_cpus);
	mutex_unlock(&narrow_lock);
}

int narrow_init(u64 components)
{
	int cpu, ret;

	xcr0_full = xgetbv(XCR_XFEATURE_ENABLED_MASK);
	xcr0_narrowed = xcr0_full & ~components;
	for_each_possible_cpu(cpu)
		per_cpu(xcr0_value, cpu) = xcr0_full;
	ret = cpuhp_setup_state(CPUHP_AP_ONLINE_DYN, "dimmer/xcr0:online", comes, goes);
	if (ret < 0)
		return ret;
	hotplug_state = ret;
	return 0;
}

void narrow_exit(void)
{
	cpuhp_remove_state(hotplug_state);
}
