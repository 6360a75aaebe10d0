/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * What programs ask of /dev/dimmer_pstate: P-states for processors, undone when the file is closed.
 *
 * A P-state is a number: on AMD's processors that of a definition (0 is the fastest), on Intel's a
 * ratio to 100 MHz. A processor that has a request of one file refuses those of others (EBUSY)
 * until that file is closed or has taken it back.
 */
#ifndef DIMMER_PSTATE_H
#define DIMMER_PSTATE_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* The most requests in one call. */
#define DIMMER_PSTATE_MOST 1024

/* In place of a P-state: what the processor requested before this file's first request. */
#define DIMMER_PSTATE_BEFORE 0xffffffffU

/* What may be requested. */
struct dimmer_pstate_info {
	__u32 slowest;
	/* The fastest without turbo, which AMD's processors add by themselves. */
	__u32 base;
	__u32 fastest;
	__u32 reserved;
	/* The clock of each P-state (kHz); 0 if it may not be requested. */
	__u32 khz[256];
};

struct dimmer_pstate_request {
	__u32 cpu;
	__u32 state;
};

/* All of these requests are made, or none. */
struct dimmer_pstate_batch {
	/* The address of the first struct dimmer_pstate_request. */
	__u64 requests;
	__u32 count;
	__u32 reserved;
};

/* One request, and how long it takes: measured with interrupts off, on that processor. */
struct dimmer_pstate_latency {
	__u32 cpu;
	__u32 state;
	/* Time that the write to the register takes (cycles of the time-stamp counter). */
	__u64 request_cycles;
	/* Time from before the write until the processor reports the P-state; 0 if it has not
	 * within 2 ms (cycles). */
	__u64 reached_cycles;
};

#define DIMMER_PSTATE_INFO _IOR('d', 0x50, struct dimmer_pstate_info)
#define DIMMER_PSTATE_REQUEST _IOW('d', 0x51, struct dimmer_pstate_batch)
/* Of `cpu`: the P-state that it requests, for whichever file, is written to `state`. */
#define DIMMER_PSTATE_REQUESTED _IOWR('d', 0x52, struct dimmer_pstate_request)
#define DIMMER_PSTATE_MEASURE _IOWR('d', 0x53, struct dimmer_pstate_latency)

#endif
