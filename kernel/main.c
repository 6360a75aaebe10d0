// SPDX-License-Identifier: GPL-2.0
/*
 * dimmer_xcr0: code that asks for wide registers faults on narrow processors, so that it can be
 * moved to wide ones before it slows down what shares the processor with it (core specialisation;
 * the paper's section 3.1).
 *
 * This file: loading, and what refuses it; /sys/kernel/dimmer_xcr0. Each refusal is a line in the
 * kernel's log.
 */
#include "dimmer_xcr0.h"

#include <linux/kobject.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/sysfs.h>
#include <asm/cpufeature.h>
#include <asm/fpu/api.h>
#include <asm/fpu/types.h>
#include <asm/fpu/xcr.h>

#define AVX512 (XFEATURE_MASK_OPMASK | XFEATURE_MASK_ZMM_Hi256 | XFEATURE_MASK_Hi16_ZMM)

static ulong components = AVX512;
module_param(components, ulong, 0444);
MODULE_PARM_DESC(components, "components of registers that narrow processors lack, as bits of XCR0 (0xe0: AVX-512)");

static uint limit = 100;
module_param(limit, uint, 0444);
MODULE_PARM_DESC(limit, "faults at one place after which a thread that was never moved may execute it (100)");

static uint timeout_us = 2000;
module_param(timeout_us, uint, 0444);
MODULE_PARM_DESC(timeout_us, "how long threads stay that are moved by their affinity (2000)");

static bool accept_compacted;
module_param(accept_compacted, bool, 0444);
MODULE_PARM_DESC(accept_compacted, "load although the kernel saves registers in the compacted format: never tried");

bool xcr0_follows = true;
module_param_named(hooks, xcr0_follows, bool, 0444);
MODULE_PARM_DESC(hooks, "for a test alone: without them, registers are lost");

DEFINE_PER_CPU(u64 [NR_COUNTS], counts);
static struct kobject *directory;

static ssize_t narrow_show(struct kobject *object, struct kobj_attribute *attribute, char *buffer)
{
	cpumask_var_t mask;
	ssize_t length;

	if (!alloc_cpumask_var(&mask, GFP_KERNEL))
		return -ENOMEM;
	narrow_get(mask);
	length = sysfs_emit(buffer, "%*pbl\n", cpumask_pr_args(mask));
	free_cpumask_var(mask);
	return length;
}

static ssize_t narrow_store(struct kobject *object, struct kobj_attribute *attribute, const char *buffer,
			    size_t length)
{
	cpumask_var_t mask;
	int ret;

	if (!alloc_cpumask_var(&mask, GFP_KERNEL))
		return -ENOMEM;
	ret = cpulist_parse(buffer, mask) ?: narrow_set(mask);
	free_cpumask_var(mask);
	return ret ?: length;
}

static ssize_t wide_show(struct kobject *object, struct kobj_attribute *attribute, char *buffer)
{
	return sysfs_emit(buffer, "%*pbl\n", cpumask_pr_args(&wide_cpus));
}

static ssize_t missed_show(struct kobject *object, struct kobj_attribute *attribute, char *buffer)
{
	return sysfs_emit(buffer, "%lu\n", hooks_missed());
}

static struct kobj_attribute narrow_attribute = __ATTR(narrow, 0644, narrow_show, narrow_store);
static struct kobj_attribute wide_attribute = __ATTR(wide, 0444, wide_show, NULL);

static struct kobj_attribute missed_attribute = __ATTR(missed, 0444, missed_show, NULL);

static ssize_t count_show(struct kobject *object, struct kobj_attribute *attribute, char *buffer);

#define COUNT(which, file) [which] = __ATTR(file, 0444, count_show, NULL)
static struct kobj_attribute count_attributes[NR_COUNTS] = {
	COUNT(FAULTS, faults),
	COUNT(MOVES, moves),
	COUNT(MOVE_NS, move_ns),
	COUNT(RETURNS, returns),
	COUNT(ENDED_BY_CALLS, ended_by_calls),
	COUNT(ENDED_BY_TIME, ended_by_time),
	COUNT(ALLOWED, allowed),
	COUNT(LIMITS, limits),
	COUNT(WITHOUT_SCHEDULER, without_scheduler),
	COUNT(SWITCHES, switches),
};

static ssize_t count_show(struct kobject *object, struct kobj_attribute *attribute, char *buffer)
{
	int which = attribute - count_attributes, cpu;
	u64 sum = 0;

	for_each_possible_cpu(cpu)
		sum += per_cpu(counts, cpu)[which];
	return sysfs_emit(buffer, "%llu\n", sum);
}

static int add_files(void)
{
	int i, ret;

	directory = kobject_create_and_add(KBUILD_MODNAME, kernel_kobj);
	if (!directory)
		return -ENOMEM;
	ret = sysfs_create_file(directory, &narrow_attribute.attr) ?:
	      sysfs_create_file(directory, &wide_attribute.attr) ?:
	      sysfs_create_file(directory, &missed_attribute.attr);
	for (i = 0; !ret && i < NR_COUNTS; i++)
		ret = sysfs_create_file(directory, &count_attributes[i].attr);
	if (ret)
		kobject_put(directory);
	return ret;
}

/*
 * KVM keeps its own idea of what XCR0 holds outside of guests. Its modules come before those for
 * each vendor.
 */
static bool is_kvm(const char *name)
{
	return !strcmp(name, "kvm") || !strncmp(name, "kvm_", 4);
}

static int on_module(struct notifier_block *block, unsigned long state, void *data)
{
	struct module *module = data;

	if (state == MODULE_STATE_COMING && is_kvm(module->name)) {
		pr_err("%s is being loaded: all processors are wide from now on\n", module->name);
		narrow_end();
	}
	return NOTIFY_DONE;
}

static struct notifier_block module_block = { .notifier_call = on_module };

bool has_kvm(void)
{
	bool found = IS_BUILTIN(CONFIG_KVM);

	if (!found && __symbol_get("kvm_get_kvm")) {
		__symbol_put("kvm_get_kvm");
		found = true;
	}
	return found;
}

/*
 * Values of XCR0 that the processor refuses (Intel SDM, volume 1, section 13.3) are refused here.
 */
static const char *wrong_components(u64 has)
{
	u64 stays = has & ~components;

	if (!components || (components & ~(u64)(XFEATURE_MASK_YMM | AVX512)))
		return "components has others than AVX (4) and AVX-512 (0xe0)";
	if ((components & has) != components)
		return "this processor, or its kernel, lacks some of components";
	if ((stays & AVX512) && (stays & AVX512) != AVX512)
		return "components has a part of AVX-512 (0xe0)";
	if ((stays & AVX512) && !(stays & XFEATURE_MASK_YMM))
		return "components has AVX (4) without AVX-512 (0xe0)";
	return NULL;
}

static const char *refusal(void)
{
	if (IS_ENABLED(CONFIG_PREEMPT_RT))
		return "the kernel is one for real time (PREEMPT_RT)";
	if (!boot_cpu_has(X86_FEATURE_OSXSAVE))
		return "the processor, or its kernel, has no XSAVE";
	if (boot_cpu_has(X86_FEATURE_XCOMPACTED) && !accept_compacted)
		return "the kernel saves registers in the compacted format, with which this was never tried; "
		       "accept_compacted=1 loads it all the same";
	if (boot_cpu_has(X86_FEATURE_XFD))
		return "registers of AMX are made on first use (XFD), which this does not follow";
	if (has_kvm())
		return "KVM is loaded, and has its own idea of XCR0";
	return wrong_components(xgetbv(XCR_XFEATURE_ENABLED_MASK));
}

static int __init dimmer_xcr0_init(void)
{
	const char *why = refusal();
	int ret;

	if (why) {
		pr_err("refused: %s\n", why);
		return -EOPNOTSUPP;
	}
	if (boot_cpu_has(X86_FEATURE_HYPERVISOR))
		pr_warn("this is a virtual machine: each change of XCR0 may take microseconds\n");
	if (!xcr0_follows)
		pr_warn("loaded without hooks: registers of programs WILL BE LOST\n");
	ret = narrow_init(components);
	if (ret)
		return ret;
	ret = affinity_init();
	if (ret)
		goto no_affinity;
	ret = stays_init(limit, timeout_us * (u64)NSEC_PER_USEC);
	if (ret)
		goto no_stays;
	ret = hooks_init(xcr0_follows);
	if (ret)
		goto no_hooks;
	ret = register_module_notifier(&module_block);
	if (ret)
		goto no_notifier;
	ret = add_files();
	if (ret)
		goto no_files;
	pr_info("components %lx of XCR0 can be narrow\n", components);
	return 0;
no_files:
	unregister_module_notifier(&module_block);
no_notifier:
	hooks_exit();
no_hooks:
	stays_exit();
no_stays:
	affinity_exit();
no_affinity:
	narrow_exit();
	return ret;
}

static void __exit dimmer_xcr0_exit(void)
{
	kobject_put(directory);
	unregister_module_notifier(&module_block);
	/*
	 * Nothing faults any more; then threads get their affinity back, while forks are still
	 * seen; then the hooks; then what forks until then have asked for.
	 */
	narrow_set(cpu_none_mask);
	affinity_end();
	hooks_exit();
	affinity_exit();
	stays_exit();
	narrow_exit();
}

module_init(dimmer_xcr0_init);
module_exit(dimmer_xcr0_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Faults of wide SIMD code on narrow processors");
