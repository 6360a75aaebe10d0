// SPDX-License-Identifier: GPL-2.0
/*
 * Where the kernel is about to save or restore registers, switches threads, or enters a system
 * call.
 *
 *	sched_switch			before the switch saves the registers: full
 *	kernel_fpu_begin_mask		saves them, and then uses them itself: full
 *	switch_fpu_return		restores them on the way to user mode: narrow after it
 *	the five of `touches`		save or restore them in between: full before, narrow after
 *
 * What makes XCR0 full must never be left out. So it hangs on ftrace itself: kprobes are skipped
 * inside other probes, kretprobes if too many threads are within the function, and both if ftrace
 * is switched off, which FL_PERMANENT forbids. What makes it narrow may be left out: the processor
 * stays wide until its next switch.
 */
#include "dimmer_xcr0.h"

#include <linux/ftrace.h>
#include <linux/kprobes.h>
#include <linux/tracepoint.h>

#define BEGINS "kernel_fpu_begin_mask"
#define RETURNS_TO_USER "switch_fpu_return"

static const char *const touches[] = {
	"copy_fpstate_to_sigframe",
	"fpu__restore_sig",
	"fpu__clear_user_states",
	"fpu_sync_fpstate",
	"fpu_clone",
};

static void notrace before(unsigned long ip, unsigned long parent, struct ftrace_ops *ops, struct ftrace_regs *regs)
{
	unsigned long flags;

	local_irq_save(flags);
	xcr0_widen();
	local_irq_restore(flags);
}

static struct ftrace_ops ops = {
	.func = before,
	.flags = FTRACE_OPS_FL_RECURSION | FTRACE_OPS_FL_PERMANENT,
};

static int after(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	unsigned long flags;

	local_irq_save(flags);
	/* With the flag, switch_fpu_return is still to come; such threads never return to user mode. */
	if (!test_thread_flag(TIF_NEED_FPU_LOAD) && !(current->flags & (PF_KTHREAD | PF_USER_WORKER)))
		xcr0_narrow();
	local_irq_restore(flags);
	return 0;
}

static struct kretprobe probes[1 + ARRAY_SIZE(touches)];
static bool registered[ARRAY_SIZE(probes)];
static bool has_registers;

static void on_switch(void *data, bool preempt, struct task_struct *prev, struct task_struct *next,
		      unsigned int prev_state)
{
	if (xcr0_follows) {
		xcr0_widen();
		xcr0_forget_allowed();
	}
	stays_switch(next);
}

static void on_call(void *data, struct pt_regs *regs, long id)
{
	stays_call();
}

static void on_fork(void *data, struct task_struct *parent, struct task_struct *child)
{
	stays_fork(parent, child);
}

static void on_exit(void *data, struct task_struct *task)
{
	stays_drop(task);
}

static struct {
	const char *name;
	void *probe;
	struct tracepoint *found;
	bool registered;
} points[] = {
	{ "sched_switch", on_switch },
	{ "sys_enter", on_call },
	{ "sched_process_fork", on_fork },
	{ "sched_process_exit", on_exit },
};

static void find_point(struct tracepoint *point, void *unused)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(points); i++)
		if (!strcmp(point->name, points[i].name))
			points[i].found = point;
}

static int add_point(int i)
{
	int ret = points[i].found ? tracepoint_probe_register(points[i].found, points[i].probe, NULL) : -ENOENT;

	points[i].registered = !ret;
	if (ret)
		pr_err("refused: the tracepoint %s cannot be had (%d)\n", points[i].name, ret);
	return ret;
}

static int add_before(const char *name)
{
	/* The name is cut into words where it lies. */
	char buffer[64];
	int ret;

	strscpy(buffer, name, sizeof(buffer));
	ret = ftrace_set_filter(&ops, buffer, strlen(buffer), 0);
	if (ret)
		pr_err("refused: %s cannot be hooked (%d)\n", name, ret);
	return ret;
}

static int add_after(int i, const char *name)
{
	int ret;

	probes[i].kp.symbol_name = name;
	probes[i].handler = after;
	probes[i].maxactive = 4 * num_possible_cpus() + 64;
	ret = register_kretprobe(&probes[i]);
	registered[i] = !ret;
	if (ret)
		pr_err("refused: the end of %s cannot be hooked (%d)\n", name, ret);
	return ret;
}

static int add_registers(void)
{
	int i, ret = add_before(BEGINS);

	for (i = 0; !ret && i < ARRAY_SIZE(touches); i++)
		ret = add_before(touches[i]);
	if (ret)
		return ret;
	ret = register_ftrace_function(&ops);
	if (ret) {
		pr_err("refused: ftrace cannot be had (%d); is kernel.ftrace_enabled 0?\n", ret);
		return ret;
	}
	has_registers = true;
	ret = add_after(0, RETURNS_TO_USER);
	for (i = 0; !ret && i < ARRAY_SIZE(touches); i++)
		ret = add_after(1 + i, touches[i]);
	return ret;
}

/**
 * hooks_init() - hooks the kernel
 * @with_registers: also where it saves and restores registers; without, they are lost (a test)
 */
int hooks_init(bool with_registers)
{
	int i, ret = 0;

	for_each_kernel_tracepoint(find_point, NULL);
	for (i = 0; !ret && i < ARRAY_SIZE(points); i++)
		ret = add_point(i);
	if (!ret && with_registers)
		ret = add_registers();
	if (ret)
		hooks_exit();
	return ret;
}

/* How often the end of a function was missed. */
unsigned long hooks_missed(void)
{
	unsigned long sum = 0;
	int i;

	for (i = 0; i < ARRAY_SIZE(probes); i++)
		sum += probes[i].nmissed + probes[i].kp.nmissed;
	return sum;
}

void hooks_exit(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(probes); i++) {
		if (!registered[i])
			continue;
		unregister_kretprobe(&probes[i]);
		registered[i] = false;
	}
	if (has_registers)
		unregister_ftrace_function(&ops);
	has_registers = false;
	for (i = 0; i < ARRAY_SIZE(points); i++) {
		if (points[i].registered)
			tracepoint_probe_unregister(points[i].found, points[i].probe, NULL);
		points[i].registered = false;
	}
	tracepoint_synchronize_unregister();
}
