//! The survey's results on made-up machines.

use std::fmt::Write;

use dimmer_host::capability::{State, Survey};
use dimmer_host::cpuid::Cpuid;
use expect_test::{Expect, expect};

use crate::fixture::{Machine, machine};

#[track_caller]
fn check(name: &str, expected: &Expect) {
    let machine = machine(name);
    let cpuid = Cpuid::of(&machine.root).expect("a table of registers");
    let survey = Survey::take(&machine.root, &cpuid);
    expected.assert_eq(&render(&survey));
}

fn render(survey: &Survey) -> String {
    let mut text = String::new();
    let machine = &survey.machine;
    let identity = &machine.identity;
    writeln!(
        text,
        "{} | {} | {} {:#x}/{:#x}/{} | {}\nmicrocode {} | kernel {}\n",
        identity.brand,
        identity.vendor,
        identity.microarchitecture,
        identity.family,
        identity.model,
        identity.stepping,
        machine.hypervisor.as_deref().unwrap_or("bare metal"),
        machine.microcode.as_deref().unwrap_or("unknown"),
        machine.kernel_release.as_deref().unwrap_or("unknown"),
    )
    .expect("room");
    for capability in &survey.capabilities {
        let line = match &capability.state {
            State::Available { detail } => format!("+ {}: {detail}", capability.id),
            State::Unavailable(missing) => {
                format!("- {}: {}\n    -> {}", capability.id, missing.why, missing.remedy)
            }
            State::NotApplicable { why } => format!(". {}: {why}", capability.id),
        };
        writeln!(text, "{line}").expect("room");
    }
    text
}

#[test]
fn finds_everything_on_a_skylake_server_as_root() {
    check(
        "skylake-sp-bare-metal",
        &expect![[r#"
            Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz | GenuineIntel | Skylake-SP 0x6/0x55/4 | bare metal
            microcode 0x2007006 | kernel 6.12.9

            + avx2: avx2, fma
            + avx512: f, dq, cd, bw, vl
            . amx: the processor shows none
            + migration: fsgsbase, no shadow stack
            . waitpkg: the processor shows none
            . monitorx: the processor shows none
            + monitor: privileged: the kernel's idle loop uses it
            + tsc: 2.100000 GHz by CPUID leaf 0x16 (base frequency, nominal); the kernel tells the time by it
            + cpuid-faulting: cpuid_fault in /proc/cpuinfo
            + msr: /dev/cpu/0/msr readable, opens for writing
            + msr-safe: /dev/cpu/0/msr_safe readable, limited by /dev/cpu/msr_allowlist
            - p-states: /dev/cpu/0/msr does not answer for register 0xce: failed to fill whole buffer
                -> in a virtual machine only the host has it: use bare metal
            - dimmer-pstate: no /dev/dimmer_pstate: the module is not loaded
                -> without a driver for cpufreq, as root: insmod kernel/dimmer_pstate.ko
            + cpufreq: cpu 0-3: intel_pstate, governor performance, hardware 1000-3700 MHz, allowed 1000-3700 MHz, writable
            - uclamp: no /proc/sys/kernel/sched_util_clamp_min
                -> use a kernel from 5.3 on that was built with CONFIG_UCLAMP_TASK
            + clock-requests: every policy is writable, without a base clock
            - group-clamps: no /sys/fs/cgroup/cpu.uclamp.min
                -> as root: systemd-run --scope -p Delegate=yes PROGRAM, with Linux 5.4 or later that has CONFIG_UCLAMP_TASK_GROUP
            + intel-pstate: mode active
            . amd-pstate: no AMD processor
            + hwp: HWP, preference of policy0: balance_performance
            - hwp-requests: the driver intel_pstate requests levels itself
                -> request clocks by its files (cpufreq)
            . cppc-requests: the processor shows no CPPC
            - clock-moderation: no /run/dimmer/socket.clocks
                -> have the administrator run dimmerd as root with clocks.moderate = true
            + turbo: /sys/devices/system/cpu/intel_pstate/no_turbo, turbo is on
            + energy-preference: /sys/devices/system/cpu/cpufreq/policy0/energy_performance_preference: balance_performance; not for requests of clocks: policy0 offers no preferences to choose from
            - intel-pstate-limits: no /sys/devices/system/cpu/intel_pstate/min_perf_pct
                -> use the driver intel_pstate
            - speed-select: no /dev/isst_interface
                -> as root: modprobe isst_tpmi (Sierra Forest, Granite Rapids and later), or isst_if_mbox_pci and isst_if_mmio (Ice Lake to Emerald Rapids servers)
            - idle-states: no /dev/cpu_dma_latency
                -> use a kernel with CONFIG_CPU_IDLE, and mount /dev
            + rapl: package, package
            + pmu: cpu, 4 general counters, perf_event_paranoid 2
            + license-events: CORE_POWER.LVL0_TURBO_LICENSE (r0728), CORE_POWER.LVL1_TURBO_LICENSE (r1828), CORE_POWER.LVL2_TURBO_LICENSE (r2028)
            + throttle-events: CORE_POWER.THROTTLE (r4028)
            + packed-events: FP_ARITH_INST_RETIRED.256B_PACKED_DOUBLE (r10c7), FP_ARITH_INST_RETIRED.256B_PACKED_SINGLE (r20c7), FP_ARITH_INST_RETIRED.512B_PACKED_DOUBLE (r40c7), FP_ARITH_INST_RETIRED.512B_PACKED_SINGLE (r80c7)
            + allowed-cpus: 4 of 4 present: 0-3
            + smt: 4 hardware threads on 2 cores
            + cpuset-v2: /sys/fs/cgroup, writable
            . cpuset-v1: no cgroup v1 hierarchy with cpuset is mounted
            + dedicated-cores: partitions (cgroup v2) below /sys/fs/cgroup: 0-3
            + sched-ext: disabled
            - specialise-module: no /sys/kernel/dimmer_xcr0: it is not loaded, so no wide code faults on narrow CPUs
                -> as root: make -C kernel && insmod kernel/dimmer_xcr0.ko; if it refuses, the kernel's log says why (`dimmer_xcr0: refused`)
            - specialise-scheduler: no file system of type bpf at /sys/fs/bpf, where its maps go
                -> as root: mount -t bpf bpf /sys/fs/bpf
            + real-time: by CAP_SYS_NICE, a share of every second is kept for others
            + bpf: permitted, types in /sys/kernel/btf/vmlinux
            + uprobes: by perf_event_open
            + arch-status: /proc/self/arch_status; best effort: noticed when a task is scheduled out
            . steal: no hypervisor is seen
            + huge-pages: transparent: madvise, reserved 2 MiB pages: 64
            + locked-memory: without limit, by CAP_IPC_LOCK
            + journal: /run/dimmer, nothing to restore
        "#]],
    );
}

#[test]
fn says_why_a_cloud_machine_has_nothing() {
    check(
        "granite-rapids-vm",
        &expect![[r#"
            Intel(R) Xeon(R) 6975P-C | GenuineIntel | Granite Rapids 0x6/0xad/1 | KVM
            microcode unknown | kernel 6.1.0-cloud

            + avx2: avx2, fma
            + avx512: f, dq, ifma, cd, bw, vl, vbmi, vbmi2, vnni, bitalg, vpopcntdq, fp16, bf16
            + amx: bf16, int8, fp16; permission is given on request
            + migration: fsgsbase, no shadow stack
            . waitpkg: the processor shows none
            . monitorx: the processor shows none
            . monitor: the hypervisor does not show it to this guest
            + tsc: 2.700000 GHz by CPUID leaf 0x40000010 (hypervisor); the kernel tells the time by kvm-clock
            - cpuid-faulting: no cpuid_fault in /proc/cpuinfo
                -> use an Intel processor since Ivy Bridge with Linux 4.12 or later (`cpuid_fault` among the flags in /proc/cpuinfo), or an AMD processor since Zen 4 with Linux 6.17 or later, and a hypervisor that passes it on
            - msr: no /dev/cpu/0/msr: the kernel has no msr driver loaded
                -> as root: modprobe msr
            - msr-safe: no /dev/cpu/msr_allowlist: the module msr-safe is not loaded
                -> have the administrator load msr-safe with an allow list
            - p-states: no /dev/cpu/0/msr: the kernel has no msr driver loaded
                -> as root: modprobe msr
            - dimmer-pstate: no /dev/dimmer_pstate: the module is not loaded
                -> without a driver for cpufreq, as root: insmod kernel/dimmer_pstate.ko
            - cpufreq: no policy under /sys/devices/system/cpu/cpufreq
                -> only the host can: use bare metal where it matters; measuring by timing works here
            - uclamp: no /proc/sys/kernel/sched_util_clamp_min
                -> use a kernel from 5.3 on that was built with CONFIG_UCLAMP_TASK
            - clock-requests: no policy under /sys/devices/system/cpu/cpufreq
                -> use bare metal, with a driver for cpufreq
            - group-clamps: no /sys/fs/cgroup/user.slice/cpu.uclamp.min
                -> as root: systemd-run --scope -p Delegate=yes PROGRAM, with Linux 5.4 or later that has CONFIG_UCLAMP_TASK_GROUP
            - intel-pstate: no /sys/devices/system/cpu/intel_pstate/status
                -> only the host can: use bare metal where it matters; measuring by timing works here
            . amd-pstate: no AMD processor
            . hwp: the processor, as the hypervisor shows it, has none
            . hwp-requests: the processor shows no HWP
            . cppc-requests: the processor shows no CPPC
            - clock-moderation: no /run/dimmer/socket.clocks
                -> have the administrator run dimmerd as root with clocks.moderate = true
            - turbo: neither /sys/devices/system/cpu/intel_pstate/no_turbo nor /sys/devices/system/cpu/cpufreq/boost nor a policy's boost is there
                -> switch turbo off in the firmware; in a virtual machine only its host can
            - energy-preference: no policy has energy_performance_preference
                -> only the host can: use bare metal where it matters; measuring by timing works here
            - intel-pstate-limits: no /sys/devices/system/cpu/intel_pstate/min_perf_pct
                -> only the host can: use bare metal where it matters; measuring by timing works here
            - speed-select: no /dev/isst_interface
                -> as root: modprobe isst_tpmi (Sierra Forest, Granite Rapids and later), or isst_if_mbox_pci and isst_if_mmio (Ice Lake to Emerald Rapids servers)
            - idle-states: no /dev/cpu_dma_latency
                -> use a kernel with CONFIG_CPU_IDLE, and mount /dev
            - rapl: no intel-rapl zone under /sys/class/powercap
                -> only the host can: use bare metal where it matters; measuring by timing works here
            - pmu: no core PMU in /sys/bus/event_source/devices: the hypervisor (KVM) gives this guest none
                -> use bare metal or a virtual machine with a PMU; Dimmer concludes from timing instead
            . license-events: the event tables of Granite Rapids document none
            . throttle-events: the event tables of Granite Rapids document none
            - packed-events: Granite Rapids has FP_ARITH_INST_RETIRED.256B_PACKED_DOUBLE (r10c7), FP_ARITH_INST_RETIRED.256B_PACKED_SINGLE (r20c7), FP_ARITH_INST_RETIRED.512B_PACKED_DOUBLE (r40c7), FP_ARITH_INST_RETIRED.512B_PACKED_SINGLE (r80c7), EXE.AMX_BUSY (r02b7), but no counters can be opened
                -> see pmu; Dimmer concludes from timing instead
            + allowed-cpus: 1 of 2 present: 1
            - smt: the hypervisor shows one thread per core; whether another guest runs on the sibling cannot be seen
                -> use bare metal or a dedicated host where the sibling matters
            - cpuset-v2: no permission to write /sys/fs/cgroup/user.slice/cgroup.procs
                -> run as root
            . cpuset-v1: no cgroup v1 hierarchy with cpuset is mounted
            - dedicated-cores: no permission to write /sys/fs/cgroup/user.slice/cgroup.procs
                -> run as root; until then, workers are pinned and the program's own threads keep off by affinity
            - sched-ext: no /sys/kernel/sched_ext: the kernel is built without it
                -> use Linux 6.12 or later with CONFIG_SCHED_CLASS_EXT
            - specialise-module: no /sys/kernel/dimmer_xcr0: it is not loaded, so no wide code faults on narrow CPUs
                -> as root: make -C kernel && insmod kernel/dimmer_xcr0.ko; if it refuses, the kernel's log says why (`dimmer_xcr0: refused`)
            - specialise-scheduler: no /sys/kernel/sched_ext: the kernel is built without loadable schedulers
                -> use Linux 6.12 or later with CONFIG_SCHED_CLASS_EXT, or `dimmer specialise --affinity`
            - real-time: no CAP_SYS_NICE, and the limit is 0 (ulimit -r)
                -> run as root, or raise rtprio in /etc/security/limits.conf
            - bpf: no /proc/sys/kernel/unprivileged_bpf_disabled: the kernel is built without BPF, or a sandbox hides it
                -> use a kernel with CONFIG_BPF_SYSCALL
            - uprobes: no /sys/bus/event_source/devices/uprobe/type
                -> use a kernel with CONFIG_UPROBE_EVENTS
            + arch-status: /proc/self/arch_status; best effort: noticed when a task is scheduled out
            + steal: 1.50 s since boot; a hypervisor that does not tell leaves this at 0
            - huge-pages: /sys/kernel/mm/transparent_hugepage/enabled does not say always or madvise, and none are reserved
                -> as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled
            - locked-memory: the limit is 64 KiB (ulimit -l)
                -> run as root, or raise memlock in /etc/security/limits.conf
            + journal: /run/dimmer, nothing to restore
        "#]],
    );
}

#[test]
fn finds_the_old_cpusets_on_a_zen_5_guest() {
    check(
        "zen-5-vm",
        &expect![[r#"
            AMD EPYC | AuthenticAMD | Zen 5 0x1a/0x2/1 | KVM
            microcode unknown | kernel 6.18.44

            + avx2: avx2, fma
            + avx512: f, dq, ifma, cd, bw, vl, vbmi, vbmi2, vnni, bitalg, vpopcntdq, vp2intersect, bf16
            . amx: the processor shows none
            + migration: fsgsbase, no shadow stack
            . waitpkg: the processor shows none
            . monitorx: the hypervisor does not show it to this guest
            . monitor: the hypervisor does not show it to this guest
            + tsc: rate not given, to be measured; the kernel tells the time by it
            - cpuid-faulting: no cpuid_fault in /proc/cpuinfo
                -> use an Intel processor since Ivy Bridge with Linux 4.12 or later (`cpuid_fault` among the flags in /proc/cpuinfo), or an AMD processor since Zen 4 with Linux 6.17 or later, and a hypervisor that passes it on
            - msr: no /dev/cpu/0/msr: the kernel has no msr driver loaded
                -> as root: modprobe msr
            - msr-safe: no /dev/cpu/msr_allowlist: the module msr-safe is not loaded
                -> have the administrator load msr-safe with an allow list
            - p-states: no /dev/cpu/0/msr: the kernel has no msr driver loaded
                -> as root: modprobe msr
            - dimmer-pstate: no /dev/dimmer_pstate: the module is not loaded
                -> without a driver for cpufreq, as root: insmod kernel/dimmer_pstate.ko
            - cpufreq: no policy under /sys/devices/system/cpu/cpufreq
                -> only the host can: use bare metal where it matters; measuring by timing works here
            - uclamp: no /proc/sys/kernel/sched_util_clamp_min
                -> use a kernel from 5.3 on that was built with CONFIG_UCLAMP_TASK
            - clock-requests: no policy under /sys/devices/system/cpu/cpufreq
                -> use bare metal, with a driver for cpufreq
            - group-clamps: no /sys/fs/cgroup/unified/cpu.uclamp.min
                -> as root: systemd-run --scope -p Delegate=yes PROGRAM, with Linux 5.4 or later that has CONFIG_UCLAMP_TASK_GROUP
            . intel-pstate: no Intel processor
            - amd-pstate: no /sys/devices/system/cpu/amd_pstate/status
                -> only the host can: use bare metal where it matters; measuring by timing works here
            . hwp: the processor, as the hypervisor shows it, has none
            . hwp-requests: the processor shows no HWP
            . cppc-requests: the processor shows no CPPC
            - clock-moderation: no /run/dimmer/socket.clocks
                -> have the administrator run dimmerd as root with clocks.moderate = true
            - turbo: neither /sys/devices/system/cpu/intel_pstate/no_turbo nor /sys/devices/system/cpu/cpufreq/boost nor a policy's boost is there
                -> switch turbo off in the firmware; in a virtual machine only its host can
            - energy-preference: no policy has energy_performance_preference
                -> only the host can: use bare metal where it matters; measuring by timing works here
            . intel-pstate-limits: no Intel processor
            . speed-select: no Intel processor
            - idle-states: no /dev/cpu_dma_latency
                -> use a kernel with CONFIG_CPU_IDLE, and mount /dev
            - rapl: no intel-rapl zone under /sys/class/powercap
                -> only the host can: use bare metal where it matters; measuring by timing works here
            - pmu: no core PMU in /sys/bus/event_source/devices: the hypervisor (KVM) gives this guest none
                -> use bare metal or a virtual machine with a PMU; Dimmer concludes from timing instead
            . license-events: the event tables of Zen 5 document none
            . throttle-events: the event tables of Zen 5 document none
            - packed-events: Zen 5 has fp_ops_retired_by_width.pack_256_uops_retired (r1008), fp_ops_retired_by_width.pack_512_uops_retired (r2008), but no counters can be opened
                -> see pmu; Dimmer concludes from timing instead
            + allowed-cpus: 2 of 2 present: 0-1
            - smt: the hypervisor shows one thread per core; whether another guest runs on the sibling cannot be seen
                -> use bare metal or a dedicated host where the sibling matters
            - cpuset-v2: no cpuset in /sys/fs/cgroup/unified/cgroup.controllers
                -> the controller is taken by cgroup v1 or missing in the kernel: boot with systemd.unified_cgroup_hierarchy=1
            + cpuset-v1: /sys/fs/cgroup/cpuset/jobs, writable
            + dedicated-cores: cpusets (cgroup v1) below /sys/fs/cgroup/cpuset/jobs: 0-1
            - sched-ext: no /sys/kernel/sched_ext: the kernel is built without it
                -> use Linux 6.12 or later with CONFIG_SCHED_CLASS_EXT
            - specialise-module: no /sys/kernel/dimmer_xcr0: it is not loaded, so no wide code faults on narrow CPUs
                -> as root: make -C kernel && insmod kernel/dimmer_xcr0.ko; if it refuses, the kernel's log says why (`dimmer_xcr0: refused`)
            - specialise-scheduler: no /sys/kernel/sched_ext: the kernel is built without loadable schedulers
                -> use Linux 6.12 or later with CONFIG_SCHED_CLASS_EXT, or `dimmer specialise --affinity`
            + real-time: by CAP_SYS_NICE, without a limit of time
            + bpf: permitted, types in /sys/kernel/btf/vmlinux
            + uprobes: by perf_event_open
            + arch-status: /proc/self/arch_status; best effort: noticed when a task is scheduled out
            + steal: 0.09 s since boot; a hypervisor that does not tell leaves this at 0
            + huge-pages: transparent: always, reserved 2 MiB pages: 0
            + locked-memory: without limit, by CAP_IPC_LOCK
            + journal: /run/dimmer, nothing to restore
        "#]],
    );
}

#[test]
fn names_the_missing_permissions_on_a_desktop() {
    check(
        "alder-lake-desktop",
        &expect![[r#"
            12th Gen Intel(R) Core(TM) i7-12700 | GenuineIntel | Alder Lake 0x6/0x97/2 | bare metal
            microcode unknown | kernel 6.8.0-45-generic

            + avx2: avx2, fma
            . avx512: the processor has none
            . amx: the processor shows none
            + migration: fsgsbase, no shadow stack
            + waitpkg: up to 100000 TSC ticks at a time, C0.1 and C0.2
            . monitorx: the processor shows none
            + monitor: privileged: the kernel's idle loop uses it
            + tsc: 3.609600 GHz by CPUID leaf 0x15; the kernel tells the time by it
            - cpuid-faulting: no cpuid_fault in /proc/cpuinfo
                -> use an Intel processor since Ivy Bridge with Linux 4.12 or later (`cpuid_fault` among the flags in /proc/cpuinfo), or an AMD processor since Zen 4 with Linux 6.17 or later, and a hypervisor that passes it on
            - msr: no permission to read /dev/cpu/0/msr
                -> run as root, or give read permission on /dev/cpu/*/msr and CAP_SYS_RAWIO
            - msr-safe: no /dev/cpu/msr_allowlist: the module msr-safe is not loaded
                -> have the administrator load msr-safe with an allow list
            - p-states: no permission to read /dev/cpu/0/msr
                -> run as root, or give read permission on /dev/cpu/*/msr and CAP_SYS_RAWIO
            - dimmer-pstate: no /dev/dimmer_pstate: the module is not loaded
                -> without a driver for cpufreq, as root: insmod kernel/dimmer_pstate.ko
            + cpufreq: cpu 0-1: intel_pstate, governor powersave, hardware 800-4800 MHz, allowed 800-4800 MHz, read-only for this user; cpu 2: intel_pstate, governor powersave, hardware 800-3600 MHz, allowed 800-3600 MHz, read-only for this user
            - uclamp: no /proc/sys/kernel/sched_util_clamp_min
                -> use a kernel from 5.3 on that was built with CONFIG_UCLAMP_TASK
            - clock-requests: no permission to write scaling_max_freq of policy0
                -> run as root
            - group-clamps: no /sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope/cpu.uclamp.min
                -> as root: systemd-run --scope -p Delegate=yes PROGRAM, with Linux 5.4 or later that has CONFIG_UCLAMP_TASK_GROUP
            + intel-pstate: mode active
            . amd-pstate: no AMD processor
            + hwp: HWP, preference of policy0: balance_performance
            - hwp-requests: the driver intel_pstate requests levels itself
                -> request clocks by its files (cpufreq)
            . cppc-requests: the processor shows no CPPC
            - clock-moderation: no /run/dimmer/socket.clocks
                -> have the administrator run dimmerd as root with clocks.moderate = true
            - turbo: no permission to write /sys/devices/system/cpu/intel_pstate/no_turbo
                -> run as root
            + energy-preference: /sys/devices/system/cpu/cpufreq/policy0/energy_performance_preference: balance_performance; not for requests of clocks: policy0 offers no preferences to choose from
            - intel-pstate-limits: no /sys/devices/system/cpu/intel_pstate/min_perf_pct
                -> use the driver intel_pstate
            - speed-select: no /dev/isst_interface
                -> as root: modprobe isst_tpmi (Sierra Forest, Granite Rapids and later), or isst_if_mbox_pci and isst_if_mmio (Ice Lake to Emerald Rapids servers)
            - idle-states: no /dev/cpu_dma_latency
                -> use a kernel with CONFIG_CPU_IDLE, and mount /dev
            - rapl: no permission to read /sys/class/powercap/intel-rapl:0/energy_uj
                -> run as root, or as root: chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj
            - pmu: /proc/sys/kernel/perf_event_paranoid is 4
                -> as root: sysctl kernel.perf_event_paranoid=2, or give CAP_PERFMON
            - license-events: Alder Lake has CORE_POWER.LICENSE_1 (r0228), CORE_POWER.LICENSE_2 (r0428), CORE_POWER.LICENSE_3 (r0828), but no counters can be opened
                -> see pmu; Dimmer concludes from timing instead
            . throttle-events: the event tables of Alder Lake document none
            - packed-events: Alder Lake has FP_ARITH_INST_RETIRED.256B_PACKED_DOUBLE (r10c7), FP_ARITH_INST_RETIRED.256B_PACKED_SINGLE (r20c7), but no counters can be opened
                -> see pmu; Dimmer concludes from timing instead
            + allowed-cpus: 3 of 4 present: 0-2; offline: 3
            + smt: 3 hardware threads on 2 cores
            - cpuset-v2: cpuset is not delegated to /sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope
                -> run as root
            . cpuset-v1: no cgroup v1 hierarchy with cpuset is mounted
            - dedicated-cores: no permission to switch cpuset on in /sys/fs/cgroup/cgroup.subtree_control
                -> run as root; until then, workers are pinned and the program's own threads keep off by affinity
            - sched-ext: no /sys/kernel/sched_ext: the kernel is built without it
                -> use Linux 6.12 or later with CONFIG_SCHED_CLASS_EXT
            - specialise-module: no /sys/kernel/dimmer_xcr0: it is not loaded, so no wide code faults on narrow CPUs
                -> as root: make -C kernel && insmod kernel/dimmer_xcr0.ko; if it refuses, the kernel's log says why (`dimmer_xcr0: refused`)
            - specialise-scheduler: no /sys/kernel/sched_ext: the kernel is built without loadable schedulers
                -> use Linux 6.12 or later with CONFIG_SCHED_CLASS_EXT, or `dimmer specialise --affinity`
            + real-time: up to priority 95, a share of every second is kept for others
            - bpf: no CAP_BPF; /proc/sys/kernel/unprivileged_bpf_disabled is 2, and tracing needs the capability anyway
                -> run as root, or give CAP_BPF and CAP_PERFMON
            - uprobes: no CAP_PERFMON
                -> run as root, or give CAP_PERFMON
            . arch-status: without AVX-512 the kernel has nothing to tell
            . steal: no hypervisor is seen
            + huge-pages: transparent: madvise, reserved 2 MiB pages: 0
            + locked-memory: without limit
            + journal: /run/dimmer, nothing to restore
        "#]],
    );
}

#[test]
fn tells_what_a_crashed_process_left_changed() {
    let missing = |journal: &str| {
        let machine = Machine::new(&format!("//- /run/dimmer/journal.1.0\n{journal}"));
        let survey = Survey::take(&machine.root, &Cpuid::instruction());
        let State::Unavailable(missing) = &survey.capability("journal").expect("a journal").state
        else {
            panic!("a journal that hides what is to be restored");
        };
        (missing.why.clone(), missing.remedy.clone())
    };
    // Each line has its checksum; the last line is unfinished.
    let (why, remedy) =
        missing("v2\t/sys/a\t0\t1\t040a6cf2\nv2\t/sys/b\t0\t1\t43aa1622\nv2\t/sys/c\t0");
    assert_eq!(why, "a crashed process has left changed: /sys/a, /sys/b");
    assert_eq!(remedy, "dimmer restore");
    let (why, _) = missing("v2\t/sys/a\t0\t1\t00000000\n");
    assert_eq!(why, "the journal of process 1 was damaged, or is none of Dimmer's");
}

/// Intel Speed Select core power on a machine whose device answers this.
fn speed_select(device: &str) -> State {
    let machine = machine("skylake-sp-bare-metal");
    let cpuid = Cpuid::of(&machine.root).expect("a table of registers");
    let path = machine.root.path("/dev/isst_interface");
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
    std::fs::write(path, device).expect("a file");
    let survey = Survey::take(&machine.root, &cpuid);
    let found = survey.capability("speed-select").expect("the capability");
    let enables = "libdimmer: clocks that threads ask for, the eighth choice";
    assert_eq!(found.enables, Some(enables));
    found.state.clone()
}

#[test]
fn names_the_classes_of_speed_select_and_why_requests_do_not_use_it() {
    let device = |state| {
        let mut text = "version: 2\n".to_owned();
        for cpu in 0..4 {
            text += &format!("cpu {cpu}: {:#x}\n", cpu << 3);
        }
        for domain in ["package 0 domain 0", "package 1 domain 0"] {
            text += &format!("{domain} supported: 1\n{domain} state: {state}\n");
            for class in 0..4 {
                text += &format!("{domain} class {class}: {:#x}\n", 0xff_0000 + (class << 4));
            }
            for core in 0..4 {
                text += &format!("{domain} core {core}: {}\n", core % 2);
            }
        }
        speed_select(&text)
    };
    let State::Available { detail } = device(0) else { panic!("not there") };
    expect!["package 0 domain 0: off, 2 cores; package 1 domain 0: off, 2 cores"]
        .assert_eq(&detail);
    let State::Available { detail } = device(1) else { panic!("not there") };
    expect![[r#"
        package 0 domain 0: on, by weight, class 0 (weight 0, any clock): 2 of 2 cores, class 1 (weight 1, any clock): 0 of 2 cores, class 2 (weight 2, any clock): 0 of 2 cores, class 3 (weight 3, any clock): 0 of 2 cores
        package 1 domain 0: on, by weight, class 0 (weight 0, any clock): 0 of 2 cores, class 1 (weight 1, any clock): 2 of 2 cores, class 2 (weight 2, any clock): 0 of 2 cores, class 3 (weight 3, any clock): 0 of 2 cores
        not for requests of clocks: package 0 domain 0 has it on already, by the firmware or another program"#]].assert_eq(&detail.replace("; ", "\n"));
    let State::Unavailable(missing) = speed_select("version: 1\n") else { panic!("there") };
    expect!["/dev/isst_interface: it has no TPMI, no mailbox and no registers"]
        .assert_eq(&missing.why);
    let State::Unavailable(missing) = speed_select("") else { panic!("there") };
    expect!["/dev/isst_interface: Invalid argument (os error 22)"].assert_eq(&missing.why);
}
