// SPDX-License-Identifier: GPL-2.0
// A driver for cpufreq without a clock behind it, for guests: each CPU has its own policy, from 800
// to 3000 MHz and to 3600 MHz by turbo. What is requested is reported as the clock, after as many
// microseconds as the parameter `delay_us` says.
#include <linux/cpufreq.h>
#include <linux/delay.h>
#include <linux/module.h>

static unsigned int delay_us = 50;
module_param(delay_us, uint, 0644);
MODULE_PARM_DESC(delay_us, "Time that a request takes");

static struct cpufreq_frequency_table table[] = {
	{ .frequency = 800000 },
	{ .frequency = 1600000 },
	{ .frequency = 2400000 },
	{ .frequency = 3000000 },
	{ .frequency = 3600000, .flags = CPUFREQ_BOOST_FREQ },
	{ .frequency = CPUFREQ_TABLE_END },
};

static struct freq_attr *attributes[] = {
	&cpufreq_freq_attr_scaling_available_freqs,
	&cpufreq_freq_attr_scaling_boost_freqs,
	NULL,
};

static unsigned int clocks[NR_CPUS];

static int made_up_init(struct cpufreq_policy *policy)
{
	policy->freq_table = table;
	policy->cpuinfo.transition_latency = delay_us * NSEC_PER_USEC;
	policy->cur = clocks[policy->cpu] = 1600000;
	return 0;
}

static int made_up_target(struct cpufreq_policy *policy, unsigned int index)
{
	udelay(delay_us);
	clocks[policy->cpu] = table[index].frequency;
	return 0;
}

static unsigned int made_up_get(unsigned int cpu)
{
	return clocks[cpu];
}

static struct cpufreq_driver made_up = {
	.name = "made-up",
	.init = made_up_init,
	.verify = cpufreq_generic_frequency_table_verify,
	.target_index = made_up_target,
	.get = made_up_get,
	.attr = attributes,
};

static int __init made_up_start(void)
{
	int error = cpufreq_register_driver(&made_up);

	if (error)
		return error;
	error = cpufreq_enable_boost_support();
	if (error)
		cpufreq_unregister_driver(&made_up);
	return error;
}

static void __exit made_up_end(void)
{
	cpufreq_unregister_driver(&made_up);
}

module_init(made_up_start);
module_exit(made_up_end);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("cpufreq without a clock");
