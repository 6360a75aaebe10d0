//! Topology of made-up machines: which CPUs share cores and caches.

use dimmer_host::privilege::allowed_cpus;
use dimmer_host::root::format_cpu_list;
use dimmer_host::topology;
use dimmer_processor::units::CpuId;
use expect_test::{Expect, expect};

use crate::fixture::{Machine, machine};

#[track_caller]
fn check(machine: &Machine, expected: &Expect) {
    let topology = topology::read(&machine.root).expect("a topology");
    let mut text = String::new();
    for cpu in &topology.cpus {
        let node = cpu.node.map_or("-".to_owned(), |node| node.to_string());
        let siblings: Vec<u32> = topology.siblings(cpu.id).into_iter().map(CpuId::index).collect();
        text += &format!(
            "cpu {} core {} package {} node {node} {:?}{} siblings {siblings:?}\n",
            cpu.id,
            cpu.core,
            cpu.package,
            cpu.kind,
            if cpu.online { "" } else { " offline" },
        );
    }
    for cache in &topology.caches {
        let cpus: Vec<u32> = cache.cpus.iter().map(|cpu| cpu.index()).collect();
        text += &format!("L{} {:?} {} {cpus:?}\n", cache.level, cache.content, cache.size);
    }
    expected.assert_eq(&text);
}

#[test]
fn reads_packages_nodes_siblings_and_shared_caches() {
    check(
        &machine("skylake-sp-bare-metal"),
        &expect![[r#"
        cpu 0 core 0 package 0 node 0 Uniform siblings [2]
        cpu 1 core 1 package 1 node 1 Uniform siblings [3]
        cpu 2 core 0 package 0 node 0 Uniform siblings [0]
        cpu 3 core 1 package 1 node 1 Uniform siblings [1]
        L1 Data 32 KiB [0, 2]
        L1 Data 32 KiB [1, 3]
        L3 Unified 22528 KiB [0, 2]
        L3 Unified 22528 KiB [1, 3]
    "#]],
    );
}

#[test]
fn tells_fast_and_thrifty_cores_and_offline_threads() {
    check(
        &machine("alder-lake-desktop"),
        &expect![[r#"
        cpu 0 core 0 package 0 node - Performance siblings [1]
        cpu 1 core 0 package 0 node - Performance siblings [0]
        cpu 2 core 1 package 0 node - Efficiency siblings []
        cpu 3 core 2 package 0 node - Uniform offline siblings []
    "#]],
    );
}

#[test]
fn goes_by_core_numbers_where_no_lists_are() {
    check(
        &machine("granite-rapids-vm"),
        &expect![[r#"
        cpu 0 core 0 package 0 node - Uniform siblings []
        cpu 1 core 1 package 0 node - Uniform siblings []
    "#]],
    );
}

#[test]
fn takes_what_the_process_may_run_on_where_sys_is_hidden() {
    let machine = Machine::new("//- /proc/self/status\nCpus_allowed_list:\t0,2\n");
    check(
        &machine,
        &expect![[r#"
        cpu 0 core 0 package 0 node - Uniform siblings []
        cpu 2 core 1 package 0 node - Uniform siblings []
    "#]],
    );
}

/// The kernel's list of allowed CPUs also has offline ones and slots for hot-plugging.
#[test]
fn a_process_may_run_on_online_cpus_alone() {
    let status = "//- /proc/self/status\nCpus_allowed_list:\t2-127\n";
    let online = "//- /sys/devices/system/cpu/online\n0-3\n";
    let allowed = |machine: &str| {
        let cpus = allowed_cpus(&Machine::new(machine).root).expect("a list");
        format_cpu_list(&cpus)
    };
    assert_eq!(allowed(&format!("{status}{online}")), "2-3");
    assert_eq!(allowed(status), "2-127");
}

#[test]
fn names_the_file_it_misses() {
    let machine = Machine::new("");
    let error = topology::read(&machine.root).expect_err("nothing to read");
    let wanted = machine.root.path("/sys/devices/system/cpu/online");
    assert_eq!(error.to_string(), format!("cannot read {}", wanted.display()));
    assert!(error.is_not_found());
}
