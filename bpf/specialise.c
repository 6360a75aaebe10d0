// SPDX-License-Identifier: GPL-2.0
/*
 * dimmer-specialise: loads the scheduler of core specialisation, and speaks to one that runs.
 *
 * usage: dimmer-specialise run --wide CPUS [--stay-us N] [--record FILE]
 *                              [--function FILE:NAME]... [--event TYPE:CONFIG:PERIOD]...
 *        dimmer-specialise wide CPUS          other processors are wide from now on
 *        dimmer-specialise hint THREAD wide|normal
 *        dimmer-specialise counts
 *
 * CPUS are as in 0-3,8. `run` stays until a signal ends it. If the module dimmer_xcr0 is loaded,
 * all processors but the wide ones are narrow meanwhile. `--function`: a thread is wide for a while
 * after it has entered this function (NAME is a symbol, or an offset in the file, as in 0x1234).
 * `--event`: likewise after PERIOD events of this type and configuration (perf_event_open(2)).
 * Maps are below /sys/fs/bpf/dimmer: `hints` can be mapped by any program that may write it, which
 * then says by one store what a thread is.
 */
#include <errno.h>
#include <linux/perf_event.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

typedef __u64 u64;
typedef __u32 u32;
typedef __s32 s32;
typedef __u8 u8;

#include "shared.h"
#include "specialise.skel.h"

#define PLACE "/sys/fs/bpf/dimmer"
#define MODULE "/sys/kernel/dimmer_xcr0/narrow"
/* Is there while a scheduler of sched_ext is loaded, and holds its name. */
#define LOADED "/sys/kernel/sched_ext/root/ops"
#define MOST_NAMED 64

static const char *const names[NR_COUNTS] = {
	[BEGAN] = "began", [ENDED_BY_CALL] = "ended_by_call", [ENDED_BY_TIME] = "ended_by_time",
	[ENDED_BY_HINT] = "ended_by_hint", [ARRIVED] = "arrived", [LEFT] = "left", [STOLEN] = "stolen",
	[INTERRUPTED] = "interrupted", [STUCK] = "stuck", [PINNED] = "pinned", [LAST] = "last",
	[BY_TIMER] = "by_timer", [WAITED_NS] = "waited_ns", [INHERITED] = "inherited",
	[WENT_HOME] = "went_home", [STAYED] = "stayed",
};

static volatile sig_atomic_t is_ended;

static void on_signal(int number)
{
	is_ended = 1;
}

static int print(enum libbpf_print_level level, const char *format, va_list arguments)
{
	return level <= LIBBPF_WARN ? vfprintf(stderr, format, arguments) : 0;
}

static int fails(const char *what)
{
	fprintf(stderr, "dimmer-specialise: %s: %s\n", what, strerror(errno));
	return 1;
}

/* Sets `value` for each processor of a list; false if it is none, or has one that cannot be. */
static bool parse(const char *list, unsigned char *set, unsigned char value)
{
	while (*list && *list != '\n') {
		char *end;
		unsigned long first = strtoul(list, &end, 10), last = first;

		if (end == list)
			return false;
		if (*end == '-') {
			list = end + 1;
			last = strtoul(list, &end, 10);
			if (end == list)
				return false;
		}
		if (last >= MAX_CPUS || first > last)
			return false;
		for (; first <= last; first++)
			set[first] = value;
		list = *end == ',' ? end + 1 : end;
		if (*end && *end != ',' && *end != '\n')
			return false;
	}
	return true;
}

static void read_nodes(unsigned char *nodes)
{
	for (int node = 0; node < 256; node++) {
		char path[64], line[1024];
		FILE *file;

		snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpulist", node);
		file = fopen(path, "r");
		if (!file)
			continue;
		if (fgets(line, sizeof(line), file))
			parse(line, nodes, node);
		fclose(file);
	}
}

/* Makes these processors narrow, if the module is there. */
static bool set_narrow(const unsigned char *is_narrow, int number)
{
	char line[MAX_CPUS * 4] = "";
	size_t length = 0;
	FILE *file;

	if (access(MODULE, F_OK))
		return true;
	for (int cpu = 0; cpu < number; cpu++)
		if (is_narrow[cpu])
			length += snprintf(line + length, sizeof(line) - length, "%s%d", length ? "," : "", cpu);
	file = fopen(MODULE, "w");
	if (!file)
		return false;
	fprintf(file, "%s\n", line);
	return !fclose(file);
}

/*
 * First the new wide processors stop being narrow, then the scheduler uses them, then the others
 * become narrow: at no time does it send a wide thread where that faults.
 */
static bool set_wide(struct cores *cores, const unsigned char *level, int number)
{
	unsigned char narrow[MAX_CPUS] = { 0 };

	for (int cpu = 0; cpu < number; cpu++)
		narrow[cpu] = !level[cpu] && !cores->level[cpu];
	if (!set_narrow(narrow, number))
		return false;
	memcpy(cores->level, level, MAX_CPUS);
	for (int cpu = 0; cpu < number; cpu++)
		narrow[cpu] = !level[cpu];
	return set_narrow(narrow, number);
}

static int number_of_cpus(void)
{
	long number = sysconf(_SC_NPROCESSORS_CONF);

	return number > MAX_CPUS ? MAX_CPUS : number;
}

static bool parse_wide(const char *list, unsigned char *level)
{
	int number = number_of_cpus(), wide = 0, all = 0;

	memset(level, 0, MAX_CPUS);
	if (!parse(list, level, 1))
		return false;
	for (int cpu = 0; cpu < MAX_CPUS; cpu++) {
		wide += level[cpu] && cpu < number;
		all += level[cpu];
	}
	return wide && wide == all;
}

/* Maps the first `size` bytes of a map that a scheduler has pinned. */
static void *map_pinned(const char *name, size_t size)
{
	char path[128];
	void *place;
	int file;

	snprintf(path, sizeof(path), PLACE "/%s", name);
	file = bpf_obj_get(path);
	if (file < 0)
		return NULL;
	place = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	return place == MAP_FAILED ? NULL : place;
}

static void print_counts(const u64 *counts)
{
	for (int i = 0; i < NR_COUNTS; i++)
		printf("%s %llu\n", names[i], (unsigned long long)counts[i]);
	fflush(stdout);
}

static int write_record(void *file, void *data, size_t size)
{
	const struct record *record = data;

	if (record->decision == TAKEN) {
		fprintf(file, "taken cpu %d level %d class %d narrow %d wide %d rank %d\n", record->cpu, record->level,
			record->class, record->has_narrow, record->has_wide, record->rank);
		return 0;
	}
	if (record->decision == PASSED) {
		/*
		 * In tenths of a millisecond, at most one: the limit is a multiple of these, and equal
		 * decisions are equal lines.
		 */
		long long tenths = record->waited_ns < 1000000 ? record->waited_ns / 100000 : 10;

		fprintf(file, "passed %d level %d running %d waited ", record->chosen, record->level, record->running);
		fprintf(file, record->waited_ns < 0 ? "-\n" : "%lld\n", tenths);
		return 0;
	}
	if (record->decision == WENT) {
		fprintf(file, "went %d own %d idle %d other %d\n", record->chosen, record->cpu, record->is_idle, record->other);
		return 0;
	}
	fprintf(file, "chosen %d from %d cpus", record->chosen, record->cpu);
	for (int cpu = 0; cpu < record->nr_cpus; cpu++)
		fprintf(file, " %d:%d:%d:%d", record->levels[cpu], record->nodes[cpu], record->runs[cpu], record->may[cpu]);
	fprintf(file, "\n");
	return 0;
}

static unsigned long threads_at_most(void)
{
	FILE *file = fopen("/proc/sys/kernel/pid_max", "r");
	unsigned long number = 32768;

	if (file && fscanf(file, "%lu", &number) != 1)
		number = 32768;
	if (file)
		fclose(file);
	return number;
}

static bool pin(struct bpf_map *map, const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), PLACE "/%s", name);
	unlink(path);
	return !bpf_map__pin(map, path) && !chmod(path, 0600);
}

/* At every end after the maps were pinned, in order or by an error. */
static void unpin(void)
{
	unlink(PLACE "/hints");
	unlink(PLACE "/counts");
	unlink(PLACE "/cores");
	rmdir(PLACE);
}

/* An option's value that cannot be used, with its form. */
static int refuses(const char *option, const char *value, const char *form)
{
	fprintf(stderr, "dimmer-specialise: %s %s: %s; it is %s\n", option, value, strerror(errno), form);
	return 1;
}

/* What `run` is asked for. */
struct options {
	const char *wide, *record;
	unsigned long stay_us;
	char *functions[MOST_NAMED], *events[MOST_NAMED];
	int nr_functions, nr_events;
};

/* Has threads that enter the function FILE:NAME begin a phase. */
static bool attach_function(struct bpf_program *program, char *named)
{
	LIBBPF_OPTS(bpf_uprobe_opts, options);
	char *name = strrchr(named, ':'), *end = NULL;
	unsigned long offset = name ? strtoul(name + 1, &end, 0) : 0;
	struct bpf_link *link;

	if (!name || name == named || !name[1])
		return errno = EINVAL, false;
	if (*end) {
		options.func_name = name + 1;
		offset = 0;
	}
	*name = 0;
	link = bpf_program__attach_uprobe_opts(program, -1, named, offset, &options);
	*name = ':';
	return link;
}

/* Has threads begin a phase after each PERIOD events of TYPE:CONFIG:PERIOD. */
static bool attach_event(struct bpf_program *program, const char *named, int number)
{
	struct perf_event_attr attributes = { .size = sizeof(attributes), .exclude_kernel = 1 };
	unsigned long long type, config, period;
	int end = 0;

	if (sscanf(named, "%lli:%lli:%lli%n", (long long *)&type, (long long *)&config, (long long *)&period, &end) < 3 ||
	    named[end] || !period)
		return errno = EINVAL, false;
	attributes.type = type;
	attributes.config = config;
	attributes.sample_period = period;
	for (int cpu = 0; cpu < number; cpu++) {
		int file = syscall(SYS_perf_event_open, &attributes, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);

		/* One that is offline has none. */
		if (file < 0 && errno == ENODEV)
			continue;
		if (file < 0 || !bpf_program__attach_perf_event(program, file))
			return false;
	}
	return true;
}

static int run(struct options *options)
{
	const char *wide = options->wide, *record = options->record;
	unsigned char level[MAX_CPUS], none[MAX_CPUS] = { 0 };
	struct specialise_bpf *skeleton;
	struct ring_buffer *ring = NULL;
	struct bpf_link *link;
	bool has_module = !access(MODULE, F_OK);
	struct cores *cores;
	int number = number_of_cpus(), kind;
	FILE *file = NULL;

	if (!parse_wide(wide, level)) {
		fprintf(stderr, "dimmer-specialise: no processors of this machine: %s\n", wide);
		return 2;
	}
	/* Before its maps, if it is one of these, are replaced by this one's. */
	if (!access(LOADED, F_OK)) {
		errno = EBUSY;
		return fails("another scheduler runs");
	}
	skeleton = specialise_bpf__open();
	if (!skeleton)
		return fails("the scheduler");
	skeleton->rodata->nr_cpus = number;
	skeleton->rodata->stay_ns = options->stay_us * 1000;
	skeleton->rodata->recording = record;
	bpf_map__set_max_entries(skeleton->maps.hints, threads_at_most() / HINTS + 1);
	if (!has_module) {
		bpf_program__set_autoload(skeleton->progs.on_begins, false);
		bpf_program__set_autoload(skeleton->progs.on_ends, false);
	}
	bpf_program__set_autoload(skeleton->progs.on_function, options->nr_functions);
	bpf_program__set_autoload(skeleton->progs.on_event, options->nr_events);
	if (specialise_bpf__load(skeleton))
		return fails("the kernel refuses the scheduler");
	mkdir(PLACE, 0700);
	atexit(unpin);
	if (!pin(skeleton->maps.hints, "hints") || !pin(skeleton->maps.counts, "counts") ||
	    !pin(skeleton->maps.cores, "cores"))
		return fails(PLACE);
	cores = map_pinned("cores", sizeof(*cores));
	if (!cores)
		return fails("cores");
	read_nodes(cores->node);
	memcpy(cores->level, level, sizeof(level));
	if (record) {
		file = fopen(record, "w");
		if (file)
			setlinebuf(file);
		ring = file ? ring_buffer__new(bpf_map__fd(skeleton->maps.decisions), write_record, file, NULL) : NULL;
		if (!ring)
			return fails(record);
	}
	if (has_module) {
		skeleton->links.on_begins = bpf_program__attach(skeleton->progs.on_begins);
		skeleton->links.on_ends = bpf_program__attach(skeleton->progs.on_ends);
		if (!skeleton->links.on_begins || !skeleton->links.on_ends)
			return fails("dimmer_xcr0");
	}
	for (int i = 0; i < options->nr_functions; i++)
		if (!attach_function(skeleton->progs.on_function, options->functions[i]))
			return refuses("--function", options->functions[i],
				       "FILE:NAME, with a symbol or an offset in the file as in 0x1234");
	for (int i = 0; i < options->nr_events; i++)
		if (!attach_event(skeleton->progs.on_event, options->events[i], number))
			return refuses("--event", options->events[i],
				       "TYPE:CONFIG:PERIOD, in the numbers of perf_event_open(2)");
	link = bpf_map__attach_struct_ops(skeleton->maps.specialise);
	if (!link)
		return fails("another scheduler runs, or the kernel allows none");
	if (!set_wide(cores, level, number))
		return fails(MODULE);
	printf("dimmer-specialise: runs%s\n", has_module ? "" : " without the module dimmer_xcr0");
	fflush(stdout);
	while (!is_ended && !skeleton->bss->exit_kind) {
		usleep(20000);
		if (ring)
			ring_buffer__consume(ring);
	}
	kind = skeleton->bss->exit_kind;
	if (kind)
		fprintf(stderr, "dimmer-specialise: the kernel ended the scheduler (%d): %s\n", kind,
			skeleton->bss->exit_message);
	set_narrow(none, number);
	bpf_link__destroy(link);
	print_counts(map_pinned("counts", sizeof(u64) * NR_COUNTS));
	if (file) {
		ring_buffer__consume(ring);
		fclose(file);
	}
	specialise_bpf__destroy(skeleton);
	return kind != 0;
}

static int change(const char *list)
{
	unsigned char level[MAX_CPUS];
	struct cores *cores;

	if (!parse_wide(list, level)) {
		fprintf(stderr, "dimmer-specialise: no processors of this machine: %s\n", list);
		return 2;
	}
	cores = map_pinned("cores", sizeof(*cores));
	if (!cores)
		return fails("no scheduler of Dimmer's runs");
	return set_wide(cores, level, number_of_cpus()) ? 0 : fails(MODULE);
}

static int hint(const char *thread, const char *what)
{
	unsigned long number = strtoul(thread, NULL, 10), most = threads_at_most();
	unsigned char *hints = map_pinned("hints", most);

	if (!hints)
		return fails("no scheduler of Dimmer's runs");
	if (number >= most || (strcmp(what, "wide") && strcmp(what, "normal")))
		return 2;
	__atomic_store_n(&hints[number], strcmp(what, "wide") ? HINT_NORMAL : HINT_WIDE, __ATOMIC_RELAXED);
	return 0;
}

static int usage(void)
{
	fprintf(stderr, "usage: dimmer-specialise run --wide CPUS [--stay-us N] [--record FILE]\n"
			"                             [--function FILE:NAME]... [--event TYPE:CONFIG:PERIOD]...\n"
			"       dimmer-specialise wide CPUS\n"
			"       dimmer-specialise hint THREAD wide|normal\n"
			"       dimmer-specialise counts\n");
	return 2;
}

int main(int argc, char **argv)
{
	struct options options = { .stay_us = 2000 };
	u64 *counts;

	libbpf_set_print(print);
	signal(SIGTERM, on_signal);
	signal(SIGINT, on_signal);
	if (argc == 3 && !strcmp(argv[1], "wide"))
		return change(argv[2]);
	if (argc == 4 && !strcmp(argv[1], "hint"))
		return hint(argv[2], argv[3]);
	if (argc == 2 && !strcmp(argv[1], "counts")) {
		counts = map_pinned("counts", sizeof(u64) * NR_COUNTS);
		if (!counts)
			return fails("no scheduler of Dimmer's runs");
		print_counts(counts);
		return 0;
	}
	if (argc < 2 || strcmp(argv[1], "run"))
		return usage();
	for (int i = 2; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--wide"))
			options.wide = argv[i + 1];
		else if (!strcmp(argv[i], "--stay-us"))
			options.stay_us = strtoul(argv[i + 1], NULL, 10);
		else if (!strcmp(argv[i], "--record"))
			options.record = argv[i + 1];
		else if (!strcmp(argv[i], "--function") && options.nr_functions < MOST_NAMED)
			options.functions[options.nr_functions++] = argv[i + 1];
		else if (!strcmp(argv[i], "--event") && options.nr_events < MOST_NAMED)
			options.events[options.nr_events++] = argv[i + 1];
		else
			return usage();
	}
	return options.wide && argc % 2 == 0 && options.stay_us ? run(&options) : usage();
}
