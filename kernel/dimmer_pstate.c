// SPDX-License-Identifier: GPL-2.0
/*
 * dimmer_pstate: programs request P-states through /dev/dimmer_pstate (dimmer_pstate.h) without
 * access to all other registers. What a file has requested is undone when it is closed, so also when
 * its program is killed.
 *
 * It is for machines on which no driver for cpufreq sets the clock (paper 002, section 3: its
 * authors' driver). Each refusal to load is a line in the kernel's log.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include "dimmer_pstate.h"

#include <linux/bitmap.h>
#include <linux/cpu.h>
#include <linux/cpufreq.h>
#include <linux/cpuhotplug.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/nospec.h>
#include <linux/percpu.h>
#include <linux/slab.h>
#include <linux/smp.h>
#include <linux/uaccess.h>
#include <asm/cpufeature.h>
#include <asm/msr.h>
#include <asm/processor.h>
#include <asm/tsc.h>

#define AMD_LIMIT 0xc0010061
#define AMD_CONTROL 0xc0010062
#define AMD_STATUS 0xc0010063
#define AMD_DEFINITIONS 0xc0010064
#define AMD_CPPC_ENABLE 0xc00102b1
#define INTEL_PLATFORM_INFO 0xce
#define INTEL_STATUS 0x198
#define INTEL_CONTROL 0x199
#define INTEL_TURBO_LIMIT 0x1ad
#define INTEL_PM_ENABLE 0x770

/* The numbers that struct dimmer_pstate_info has room for. */
#define STATES 256

/* How long a measurement waits for the P-state (us). */
#define LONGEST_WAIT_US 2000

static uint allow[STATES];
static uint nr_allow;
module_param_array(allow, uint, &nr_allow, 0444);
MODULE_PARM_DESC(allow, "the P-states that may be requested (all between the processor's limits)");

static bool in_memory;
module_param(in_memory, bool, 0444);
MODULE_PARM_DESC(in_memory, "for tests: requests are kept in memory, no register is read or written");

/* Where this processor has its P-states. */
struct layout {
	u32 control, status;
	/* Of the control register: the position and the mask of the number. */
	u32 shift, mask;
	/* The fastest without turbo, which AMD's processors add by themselves. */
	u32 slowest, base, fastest;
	/* The clock of a P-state (kHz); 0 if it is not in use. */
	u32 (*khz)(u32 state);
};

static struct layout layout;
static DECLARE_BITMAP(allowed, STATES);

/* A processor's request. */
struct owned {
	/* The file that has requested its P-state, or NULL. */
	struct file *owner;
	/* The content of the register before. */
	u64 before;
	/* With in_memory: the register. */
	u64 memory;
};

static DEFINE_PER_CPU(struct owned, owned);

/* Of all `owned`. Taken within cpus_read_lock, as the callback for processors that go needs it. */
static DEFINE_MUTEX(lock);

static int read_control(unsigned int cpu, u64 *value)
{
	if (in_memory) {
		*value = per_cpu(owned, cpu).memory;
		return 0;
	}
	return rdmsrl_safe_on_cpu(cpu, layout.control, value);
}

static int write_control(unsigned int cpu, u64 value)
{
	if (in_memory) {
		per_cpu(owned, cpu).memory = value;
		return 0;
	}
	return wrmsrl_safe_on_cpu(cpu, layout.control, value);
}

static u64 with_state(u64 control, u32 state)
{
	return (control & ~((u64)layout.mask << layout.shift)) | (u64)state << layout.shift;
}

/* A driver for cpufreq may have come since this module was loaded: then the clock is its own. */
static bool has_cpufreq(void)
{
#ifdef CONFIG_CPU_FREQ
	return !in_memory && cpufreq_get_current_driver();
#else
	return false;
#endif
}

/* Gives the processor back what it requested before. With the lock. */
static void give_back(unsigned int cpu)
{
	struct owned *own = &per_cpu(owned, cpu);

	if (!has_cpufreq() && write_control(cpu, own->before))
		pr_warn("cpu %u: its request could not be undone\n", cpu);
	own->owner = NULL;
}

static int check_cpu(u32 *cpu)
{
	if (*cpu >= nr_cpu_ids || !cpu_online(*cpu))
		return -ENXIO;
	*cpu = array_index_nospec(*cpu, nr_cpu_ids);
	return 0;
}

/* Whether this file may make this request now. */
static int check(struct file *file, struct dimmer_pstate_request *request)
{
	int ret = check_cpu(&request->cpu);
	struct file *owner;

	if (ret)
		return ret;
	if (request->state != DIMMER_PSTATE_BEFORE) {
		if (request->state >= STATES)
			return -EINVAL;
		request->state = array_index_nospec(request->state, STATES);
		if (!test_bit(request->state, allowed))
			return -EINVAL;
	}
	owner = per_cpu(owned, request->cpu).owner;
	return owner && owner != file ? -EBUSY : 0;
}

/* Makes a request that `check` allows. */
static int make(struct file *file, const struct dimmer_pstate_request *request)
{
	struct owned *own = &per_cpu(owned, request->cpu);
	u64 control;
	int ret;

	if (request->state == DIMMER_PSTATE_BEFORE) {
		if (own->owner)
			give_back(request->cpu);
		return 0;
	}
	ret = read_control(request->cpu, &control) ?:
	      write_control(request->cpu, with_state(control, request->state));
	if (!ret && !own->owner) {
		own->owner = file;
		own->before = control;
	}
	return ret;
}

/* What undoes the next request for this processor. */
static int remember(unsigned int cpu, struct dimmer_pstate_request *before)
{
	u64 control;
	int ret;

	before->cpu = cpu;
	before->state = DIMMER_PSTATE_BEFORE;
	if (!per_cpu(owned, cpu).owner)
		return 0;
	ret = read_control(cpu, &control);
	before->state = control >> layout.shift & layout.mask;
	return ret;
}

/* Makes all requests, or none. With cpus_read_lock and the lock. */
static int make_all(struct file *file, struct dimmer_pstate_request *requests, u32 count)
{
	struct dimmer_pstate_request *before;
	u32 i, made = 0;
	int ret = 0;

	before = kvmalloc_array(count, sizeof(*before), GFP_KERNEL);
	if (!before)
		return -ENOMEM;
	for (i = 0; i < count && !ret; i++)
		ret = check(file, &requests[i]);
	while (!ret && made < count) {
		ret = remember(requests[made].cpu, &before[made]) ?: make(file, &requests[made]);
		if (!ret)
			made++;
	}
	while (ret && made--)
		make(file, &before[made]);
	kvfree(before);
	return ret;
}

static long request(struct file *file, void __user *argument)
{
	struct dimmer_pstate_request *requests;
	struct dimmer_pstate_batch batch;
	long ret;

	if (copy_from_user(&batch, argument, sizeof(batch)))
		return -EFAULT;
	if (batch.reserved || batch.count > DIMMER_PSTATE_MOST)
		return -EINVAL;
	if (!batch.count)
		return 0;
	requests = vmemdup_user(u64_to_user_ptr(batch.requests), batch.count * sizeof(*requests));
	if (IS_ERR(requests))
		return PTR_ERR(requests);
	cpus_read_lock();
	mutex_lock(&lock);
	ret = has_cpufreq() ? -ENODEV : make_all(file, requests, batch.count);
	mutex_unlock(&lock);
	cpus_read_unlock();
	kvfree(requests);
	return ret;
}

/* A measurement on its processor. */
struct measured {
	struct dimmer_pstate_latency *latency;
	u64 control;
	int ret;
};

static void measure_here(void *argument)
{
	struct measured *measured = argument;
	struct dimmer_pstate_latency *latency = measured->latency;
	u64 begin, now, status, longest = (u64)tsc_khz * LONGEST_WAIT_US / 1000;

	begin = rdtsc_ordered();
	measured->ret = wrmsrl_safe(layout.control, measured->control);
	now = rdtsc_ordered();
	latency->request_cycles = now - begin;
	latency->reached_cycles = 0;
	while (!measured->ret && now - begin < longest) {
		rdmsrl(layout.status, status);
		now = rdtsc_ordered();
		if ((status >> layout.shift & layout.mask) == latency->state) {
			latency->reached_cycles = now - begin;
			break;
		}
		cpu_relax();
	}
}

static int measure_with_lock(struct file *file, struct dimmer_pstate_latency *latency)
{
	struct dimmer_pstate_request request = { .cpu = latency->cpu, .state = latency->state };
	struct measured measured = { .latency = latency };
	u64 before;
	int ret;

	if (request.state == DIMMER_PSTATE_BEFORE)
		return -EINVAL;
	if (in_memory)
		return -EOPNOTSUPP;
	if (has_cpufreq())
		return -ENODEV;
	ret = check(file, &request) ?: read_control(request.cpu, &before);
	if (ret)
		return ret;
	measured.control = with_state(before, request.state);
	ret = smp_call_function_single(request.cpu, measure_here, &measured, true) ?: measured.ret;
	if (!ret && !per_cpu(owned, request.cpu).owner) {
		per_cpu(owned, request.cpu).owner = file;
		per_cpu(owned, request.cpu).before = before;
	}
	return ret;
}

static long measure(struct file *file, void __user *argument)
{
	struct dimmer_pstate_latency latency;
	long ret;

	if (copy_from_user(&latency, argument, sizeof(latency)))
		return -EFAULT;
	cpus_read_lock();
	mutex_lock(&lock);
	ret = measure_with_lock(file, &latency);
	mutex_unlock(&lock);
	cpus_read_unlock();
	if (!ret && copy_to_user(argument, &latency, sizeof(latency)))
		ret = -EFAULT;
	return ret;
}

static long requested(void __user *argument)
{
	struct dimmer_pstate_request request;
	u64 control;
	long ret;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	cpus_read_lock();
	mutex_lock(&lock);
	ret = check_cpu(&request.cpu) ?: read_control(request.cpu, &control);
	mutex_unlock(&lock);
	cpus_read_unlock();
	if (ret)
		return ret;
	request.state = control >> layout.shift & layout.mask;
	return copy_to_user(argument, &request, sizeof(request)) ? -EFAULT : 0;
}

static long info(void __user *argument)
{
	struct dimmer_pstate_info *info = kzalloc(sizeof(*info), GFP_KERNEL);
	long ret = 0;
	u32 state;

	if (!info)
		return -ENOMEM;
	info->slowest = layout.slowest;
	info->base = layout.base;
	info->fastest = layout.fastest;
	for_each_set_bit(state, allowed, STATES)
		info->khz[state] = layout.khz(state);
	if (copy_to_user(argument, info, sizeof(*info)))
		ret = -EFAULT;
	kfree(info);
	return ret;
}

static long pstate_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	void __user *address = (void __user *)argument;

	switch (command) {
	case DIMMER_PSTATE_INFO:
		return info(address);
	case DIMMER_PSTATE_REQUEST:
		return request(file, address);
	case DIMMER_PSTATE_REQUESTED:
		return requested(address);
	case DIMMER_PSTATE_MEASURE:
		return measure(file, address);
	default:
		return -ENOTTY;
	}
}

static int pstate_release(struct inode *inode, struct file *file)
{
	unsigned int cpu;

	cpus_read_lock();
	mutex_lock(&lock);
	for_each_online_cpu(cpu)
		if (per_cpu(owned, cpu).owner == file)
			give_back(cpu);
	mutex_unlock(&lock);
	cpus_read_unlock();
	return 0;
}

/* A processor that goes has no requests when it comes again. */
static int cpu_goes(unsigned int cpu)
{
	mutex_lock(&lock);
	if (per_cpu(owned, cpu).owner)
		give_back(cpu);
	mutex_unlock(&lock);
	return 0;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = pstate_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.release = pstate_release,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = KBUILD_MODNAME,
	.fops = &operations,
	.mode = 0600,
};

/*
 * AMD: the Processor Programming References, "P-state Definition". Family 15h: 100 MHz * (CpuFid + 16) /
 * 2^CpuDid; 17h and 19h: 200 MHz * CpuFid / CpuDfsId; 1Ah: 5 MHz * CpuFid.
 */
static u32 amd_khz(u32 state)
{
	u64 definition;
	u32 divisor;

	if (rdmsrl_safe(AMD_DEFINITIONS + state, &definition) || !(definition >> 63))
		return 0;
	switch (boot_cpu_data.x86) {
	case 0x17:
	case 0x18:
	case 0x19:
		divisor = definition >> 8 & 0x3f;
		return divisor ? 200000 * (u32)(definition & 0xff) / divisor : 0;
	case 0x1a:
		return 5000 * (u32)(definition & 0xfff);
	default:
		return 0;
	}
}

/* Ratios to 100 MHz, from Sandy Bridge on. */
static u32 intel_khz(u32 state)
{
	return state * 100000;
}

/* 4 GHz, and 400 MHz less for each further one. */
static u32 memory_khz(u32 state)
{
	return 4000000 - 400000 * state;
}

static const char *find_amd(void)
{
	u64 limit, cppc;

	if (!boot_cpu_has(X86_FEATURE_HW_PSTATE) || boot_cpu_data.x86 < 0x17 || boot_cpu_data.x86 > 0x1a)
		return "not a processor of AMD's families 17h to 1Ah with P-states";
	if (!rdmsrl_safe(AMD_CPPC_ENABLE, &cppc) && cppc & 1)
		return "CPPC is in use: the processor ignores requests of P-states";
	if (rdmsrl_safe(AMD_LIMIT, &limit) || !(limit >> 4 & 7))
		return "the registers are empty, as in virtual machines";
	/* P0 is the fastest. The limit's other half is that of the moment, as for heat. */
	layout = (struct layout){
		.control = AMD_CONTROL, .status = AMD_STATUS, .mask = 7, .khz = amd_khz,
		.slowest = limit >> 4 & 7,
	};
	return NULL;
}

static const char *find_intel(void)
{
	u64 enabled, platform, turbo;

	if (!rdmsrl_safe(INTEL_PM_ENABLE, &enabled) && enabled & 1)
		return "HWP is in use: the processor ignores requests of P-states";
	if (rdmsrl_safe(INTEL_PLATFORM_INFO, &platform) || !(platform >> 8 & 0xff))
		return "the registers are empty, as in virtual machines";
	layout = (struct layout){
		.control = INTEL_CONTROL, .status = INTEL_STATUS, .shift = 8, .mask = 0xff, .khz = intel_khz,
		.slowest = platform >> 40 & 0xff, .base = platform >> 8 & 0xff, .fastest = platform >> 8 & 0xff,
	};
	if (!rdmsrl_safe(INTEL_TURBO_LIMIT, &turbo) && (turbo & 0xff) > layout.fastest)
		layout.fastest = turbo & 0xff;
	return NULL;
}

/* Where the P-states are, or why they cannot be requested. */
static const char *find_layout(void)
{
	if (in_memory) {
		layout = (struct layout){ .mask = 7, .khz = memory_khz, .slowest = 7 };
		return NULL;
	}
	if (has_cpufreq())
		return "a driver for cpufreq sets the clock: request it there";
	switch (boot_cpu_data.x86_vendor) {
	case X86_VENDOR_AMD:
	case X86_VENDOR_HYGON:
		return find_amd();
	case X86_VENDOR_INTEL:
		return find_intel();
	default:
		return "a processor of neither AMD nor Intel";
	}
}

/* The allow list, or all P-states between the limits. */
static const char *find_allowed(void)
{
	u32 low = min(layout.slowest, layout.fastest), high = max(layout.slowest, layout.fastest), i;

	for (i = low; !nr_allow && i <= high; i++)
		if (layout.khz(i))
			__set_bit(i, allowed);
	for (i = 0; i < nr_allow; i++) {
		if (allow[i] < low || allow[i] > high || !layout.khz(allow[i]))
			return "allow has a P-state that this processor does not have";
		__set_bit(allow[i], allowed);
	}
	return bitmap_empty(allowed, STATES) ? "no P-state is in use" : NULL;
}

static enum cpuhp_state hotplug;

static int __init pstate_init(void)
{
	const char *refused = find_layout() ?: find_allowed();
	int ret;

	if (refused) {
		pr_err("refused: %s\n", refused);
		return -ENODEV;
	}
	ret = cpuhp_setup_state_nocalls(CPUHP_AP_ONLINE_DYN, KBUILD_MODNAME, NULL, cpu_goes);
	if (ret < 0)
		return ret;
	hotplug = ret;
	ret = misc_register(&device);
	if (ret)
		cpuhp_remove_state_nocalls(hotplug);
	return ret;
}

/* No file is open: each of them holds the module. */
static void __exit pstate_exit(void)
{
	misc_deregister(&device);
	cpuhp_remove_state_nocalls(hotplug);
}

module_init(pstate_init);
module_exit(pstate_exit);
MODULE_DESCRIPTION("Requests of P-states by programs, undone when their file is closed");
MODULE_LICENSE("GPL");
