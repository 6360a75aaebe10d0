//! Dedicated cores on made-up machines: what is written, what is undone, and the refusals.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use dimmer_host::capability::{State, Survey};
use dimmer_host::cpuid::Cpuid;
use dimmer_host::cpusets::{self, Balancing, CpusetError, Dedicated};
use dimmer_host::journal::{Journal, OfLive, pending, restore};
use dimmer_host::root::Root;
use dimmer_processor::units::CpuId;

use crate::fixture::Machine;

/// Version 2, this process in the hierarchy's root group, four CPUs.
pub(crate) const ROOT_V2: &str = "\
//- /proc/self/mounts
cgroup2 /sys/fs/cgroup cgroup2 rw 0 0
//- /proc/self/cgroup
0::/
//- /sys/devices/system/cpu/online
0-3
//- /sys/fs/cgroup/cgroup.controllers
cpuset cpu memory
//- /sys/fs/cgroup/cgroup.subtree_control
cpu
//- /sys/fs/cgroup/cgroup.{procs,threads}
1
";

/// Version 2, this process in a session, as root.
pub(crate) const SESSION_V2: &str = "\
//- /proc/self/mounts
cgroup2 /sys/fs/cgroup cgroup2 rw 0 0
//- /proc/self/cgroup
0::/user/session
//- /proc/self/status
CapEff:	000001ffffffffff
//- /proc/sys/kernel/osrelease
6.12.9
//- /sys/devices/system/cpu/online
0-3
//- /sys/fs/cgroup/cgroup.controllers
cpuset cpu memory
//- /sys/fs/cgroup/cgroup.subtree_control
cpuset memory
//- /sys/fs/cgroup/user/{cgroup.subtree_control,session/cgroup.subtree_control}

//- /sys/fs/cgroup/user/session/cgroup.{procs,threads}
7
//- /sys/fs/cgroup/user/{cpuset.cpus.exclusive,session/cpuset.cpus.exclusive}

//- /sys/fs/cgroup/user/session/cpuset.cpus.effective
0-3
";

/// Version 1: a shell that may run anywhere, a program that is pinned to other CPUs, a kernel
/// thread.
pub(crate) const ROOT_V1: &str = "\
//- /proc/self/mounts
cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0
//- /proc/self/cgroup
3:cpuset:/
//- /sys/fs/cgroup/cpuset/tasks
20
21
22
//- /sys/fs/cgroup/cpuset/cpuset.{cpus,effective_cpus}
0-3
//- /sys/fs/cgroup/cpuset/cpuset.{mems,effective_mems}
0-1
//- /sys/fs/cgroup/cpuset/cpuset.cpu_exclusive
1
//- /proc/20/status
VmSize: 100 kB
Cpus_allowed_list:	0-3
//- /proc/21/status
VmSize: 100 kB
Cpus_allowed_list:	0-1
//- /proc/22/status
Cpus_allowed_list:	0-3
";

fn cpus(numbers: &[u32]) -> Vec<CpuId> {
    numbers.iter().map(|number| CpuId::new(*number)).collect()
}

fn begin(root: &Root, numbers: &[u32], balancing: Balancing) -> Result<Dedicated, CpusetError> {
    let (journal, _) = Journal::open(root).expect("a journal");
    Dedicated::begin(journal, &cpus(numbers), balancing)
}

/// Every file below a directory with its content, except locks.
pub(crate) fn files(root: &Root) -> Vec<(String, String)> {
    fn walk(directory: &Path, found: &mut Vec<(String, String)>) {
        for entry in std::fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                walk(&path, found);
            } else if !path.ends_with("lock") {
                let content = std::fs::read_to_string(&path).expect("text");
                found.push((path.display().to_string(), content.trim_end().to_owned()));
            }
        }
    }
    let mut found = Vec::new();
    walk(&root.path("/"), &mut found);
    found.sort();
    found
}

#[track_caller]
fn holds(root: &Root, group: &str, expected: &[(&str, &str)]) {
    for (name, content) in expected {
        assert_eq!(root.text(&format!("{group}/{name}")).expect("a file"), *content, "{name}");
    }
}

fn group(dedicated: &Dedicated) -> String {
    dedicated.entrance().rsplit_once('/').expect("a directory").0.to_owned()
}

#[test]
fn makes_a_partition_and_takes_it_back() {
    let machine = Machine::new(ROOT_V2);
    let root = &machine.root;
    let before = files(root);
    let dedicated = begin(root, &[3, 2], Balancing::Balanced).expect("dedicated");
    assert_eq!((dedicated.cpus(), dedicated.intruders()), (cpus(&[2, 3]).as_slice(), 0));
    let expected =
        [("cgroup.type", "threaded"), ("cpuset.cpus", "2-3"), ("cpuset.cpus.partition", "root")];
    holds(root, &group(&dedicated), &expected);
    assert!(!root.exists(&format!("{}/cpuset.cpus.exclusive", group(&dedicated))));
    holds(root, "/sys/fs/cgroup", &[("cgroup.subtree_control", "+cpuset")]);
    cpusets::enter(root, &dedicated.entrance()).expect("let in");
    holds(root, &group(&dedicated), &[("cgroup.threads", "0")]);

    let report = dedicated.undo().expect("undone");
    assert!(report.is_complete() && report.left.is_empty(), "{report:?}");
    // Admitted threads move to the group of the other threads.
    holds(
        root,
        "/sys/fs/cgroup",
        &[("cgroup.threads", "0"), ("cgroup.subtree_control", "-cpuset")],
    );
    let same = |files: Vec<(String, String)>| -> Vec<String> {
        files.into_iter().map(|(path, _)| path).collect()
    };
    assert_eq!(same(files(root)), same(before));
}

#[test]
fn gives_cpus_away_down_to_a_session_and_takes_them_back() {
    let machine = Machine::new(SESSION_V2);
    let root = &machine.root;
    let dedicated = begin(root, &[1], Balancing::Isolated).expect("dedicated");
    let expected = [("cpuset.cpus.exclusive", "1"), ("cpuset.cpus.partition", "isolated")];
    holds(root, &group(&dedicated), &expected);
    assert!(group(&dedicated).starts_with("/sys/fs/cgroup/user/session/dimmer."));
    for above in ["/sys/fs/cgroup/user", "/sys/fs/cgroup/user/session"] {
        let expected = [("cpuset.cpus.exclusive", "1"), ("cgroup.subtree_control", "+cpuset")];
        holds(root, above, &expected);
    }
    let directory = group(&dedicated);
    drop(dedicated);
    assert!(!root.exists(&directory));
    for above in ["/sys/fs/cgroup/user", "/sys/fs/cgroup/user/session"] {
        let expected = [("cpuset.cpus.exclusive", ""), ("cgroup.subtree_control", "-cpuset")];
        holds(root, above, &expected);
    }
    holds(root, "/sys/fs/cgroup", &[("cgroup.subtree_control", "cpuset memory")]);
}

#[test]
fn adds_to_what_others_give_away() {
    let machine = Machine::new(SESSION_V2);
    let root = &machine.root;
    root.write("/sys/fs/cgroup/user/cpuset.cpus.exclusive", "3").expect("somebody else's");
    let dedicated = begin(root, &[1], Balancing::Balanced).expect("dedicated");
    holds(root, "/sys/fs/cgroup/user", &[("cpuset.cpus.exclusive", "1,3")]);
    drop(dedicated);
    holds(root, "/sys/fs/cgroup/user", &[("cpuset.cpus.exclusive", "3")]);
}

#[test]
fn moves_others_off_with_version_1_and_back() {
    let machine = Machine::new(ROOT_V1);
    let root = &machine.root;
    let dedicated = begin(root, &[2, 3], Balancing::Isolated).expect("dedicated");
    let own = group(&dedicated);
    let expected = [
        ("cpuset.cpus", "2-3"),
        ("cpuset.mems", "0-1"),
        ("cpuset.cpu_exclusive", "1"),
        ("cpuset.sched_load_balance", "0"),
    ];
    holds(root, &own, &expected);
    // Neither the program that runs on other CPUs anyway, nor the kernel thread.
    let expected = [("cpuset.cpus", "0-1"), ("cpuset.mems", "0-1"), ("tasks", "20")];
    holds(root, &format!("{own}.others"), &expected);
    drop(dedicated);
    assert!(!root.exists(&own) && !root.exists(&format!("{own}.others")));
    holds(root, "/sys/fs/cgroup/cpuset", &[("tasks", "20")]);
}

#[test]
fn moves_nobody_who_would_not_be_pinned_again() {
    let check = |release: &str, cpu: u32| {
        let machine = format!("{ROOT_V1}//- /proc/sys/kernel/osrelease\n{release}\n");
        begin(&Machine::new(&machine).root, &[cpu], Balancing::Balanced)
    };
    let error = check("6.1.0", 1).expect_err("a refusal");
    let expected = "Linux 6.1.0 would forget that thread 21 is pinned to cpu 0-1";
    assert!(error.to_string().contains(expected), "{error}");
    check("6.1.0", 2).expect("it is pinned elsewhere");
    check("6.2.0", 1).expect("it is pinned again");
}

#[test]
fn what_a_crashed_process_dedicated_is_given_back() {
    for machine in [ROOT_V2, SESSION_V2, ROOT_V1] {
        let machine = Machine::new(machine);
        let root = &machine.root;
        let dedicated = begin(root, &[2], Balancing::Balanced).expect("dedicated");
        let own = group(&dedicated);
        assert!(pending(root)[0].paths.contains(&own));
        // Another process restores, as after a crash; nothing is left to undo at the end.
        let report = restore(root, OfLive::Restore).expect("restored");
        assert!(report.is_complete() && report.left.is_empty(), "{report:?}");
        assert!(report.restored.iter().any(|change| change.path == own && change.to == "none"));
        assert!(!root.exists(&own));
        assert!(pending(root).is_empty());
    }
}

#[test]
fn a_group_that_went_with_its_session_is_no_failure() {
    let machine = Machine::new(SESSION_V2);
    let root = &machine.root;
    let dedicated = begin(root, &[1], Balancing::Balanced).expect("dedicated");
    std::fs::remove_dir_all(root.path("/sys/fs/cgroup/user/session")).expect("gone");
    let report = dedicated.undo().expect("undone");
    assert!(report.is_complete(), "{report:?}");
    holds(root, "/sys/fs/cgroup/user", &[("cpuset.cpus.exclusive", "")]);
}

#[test]
fn refuses_cpus_that_leave_nothing_or_are_not_there() {
    let machine = Machine::new(ROOT_V2);
    let refused = |numbers: &[u32]| {
        let before = files(&machine.root);
        let error = begin(&machine.root, numbers, Balancing::Balanced).expect_err("a refusal");
        assert_eq!(files(&machine.root), before);
        error.to_string()
    };
    assert_eq!(refused(&[]), "no cpu was named to be dedicated");
    assert_eq!(
        refused(&[2, 7]),
        "cpu 7 cannot be dedicated: the control group /sys/fs/cgroup has 0-3"
    );
    assert_eq!(
        refused(&[0, 1, 2, 3]),
        "cpu 0-3 is all that the control group /sys/fs/cgroup has: nothing would be left for others"
    );
}

#[track_caller]
fn cannot(machine: &str, reason: &str) {
    let machine = Machine::new(machine);
    let missing = cpusets::check(&machine.root).expect_err("a reason");
    assert!(missing.why.contains(reason), "{missing}");
    assert!(missing.remedy.contains("affinity"), "{missing}");
    let error = begin(&machine.root, &[1], Balancing::Balanced).expect_err("a refusal");
    assert!(matches!(error, CpusetError::Unavailable(found) if found == missing));
}

#[test]
fn says_what_is_missing() {
    cannot("//- /proc/self/mounts\n", "no hierarchy of control groups with cpusets");
    cannot(&ROOT_V2.replace("0::/", "1:cpu:/"), "does not name this process's group");
    cannot(&ROOT_V2.replace("{procs,threads}", "procs mode=0444"), "no permission to write");
    let read_only = "cgroup.subtree_control mode=0444\ncpu";
    cannot(&ROOT_V2.replace("cgroup.subtree_control\ncpu", read_only), "switch cpuset on");
    cannot(&ROOT_V2.replace("0-3", "0"), "has only cpu 0");
    cannot(&SESSION_V2.replace("000001ffffffffff", "0"), "CAP_SYS_ADMIN");
    let old = SESSION_V2.replace("6.12.9", "6.1.0").replace("session/cpuset.cpus.exclusive", "x");
    cannot(&old, "Linux 6.1.0 makes partitions below other partitions alone");
    let old = format!("{ROOT_V2}//- /proc/sys/kernel/osrelease\n6.1.0\n");
    let pinned = "//- /proc/20/task/21/status\nVmSize: 1 kB\nCpus_allowed_list:\t0\n";
    let pinned = format!("{pinned}//- /proc/20/task/21/cgroup\n0::/jobs/one\n");
    cannot(&format!("{old}{pinned}"), "Linux 6.1.0 would forget that thread 21 is pinned to cpu 0");
    let present = "//- /sys/devices/system/cpu/present\n0-5\n";
    cannot(&format!("{old}{present}"), "keep everybody off cpu 4-5 even when it is online again");
    cannot(&ROOT_V1.replace("cpu_exclusive\n1", "cpu_exclusive\n0"), "not exclusively its own");
    let locked = "//- /run/dimmer/lock mode=0400\n";
    cannot(&format!("{ROOT_V2}{locked}"), "no permission to write /run/dimmer/lock");
}

/// As for a user to whom the control group was delegated: only root may write `/run`.
#[test]
fn a_change_that_cannot_be_put_on_record_is_not_promised() {
    let machine = Machine::new(&format!("{ROOT_V2}//- /run/.keep\n"));
    assert!(cpusets::check(&machine.root).is_ok());
    let set_mode = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(machine.root.path("/run"), mode).expect("a mode");
    };
    set_mode(0o555);
    let missing = cpusets::check(&machine.root).expect_err("a reason");
    assert_eq!(missing.why, "no permission to write /run, where changes are put on record");
    let survey = Survey::take(&machine.root, &Cpuid::instruction());
    let found = survey.capabilities.iter().find(|one| one.id == "dedicated-cores");
    let state = &found.expect("a capability").state;
    assert!(matches!(state, State::Unavailable(found) if found.why == missing.why), "{state:?}");
    // So that the made-up machine can be removed.
    set_mode(0o755);
}

#[test]
fn who_keeps_off_by_the_group_alone_or_under_later_kernels_is_not_in_the_way() {
    let machine = |release: &str, allowed: &str| {
        format!(
            "{ROOT_V2}//- /proc/sys/kernel/osrelease\n{release}\n//- /sys/devices/system/cpu/present\n0-3\n\
             //- /sys/fs/cgroup/jobs/cpuset.cpus.effective\n0-1\n\
             //- /proc/20/task/20/status\nVmSize: 1 kB\nCpus_allowed_list:\t{allowed}\n\
             //- /proc/20/task/20/cgroup\n0::/jobs/one\n\
             //- /proc/30/task/30/status\nCpus_allowed_list:\t0\n\
             //- /proc/30/task/30/cgroup\n0::/\n"
        )
    };
    let check = |machine: &str| begin(&Machine::new(machine).root, &[1], Balancing::Balanced);
    check(&machine("6.1.0", "0-1")).expect("its group's; a thread of the kernel");
    check(&machine("6.1.0", "1")).expect_err("pinned");
    let later = machine("6.5.0", "1").replace("present\n0-3", "present\n0-5");
    check(&later).expect("pinned again; a cpu that is offline");
}

#[test]
fn a_controller_that_others_rely_on_by_now_stays_switched_on() {
    for (file, content) in [
        ("cpuset.cpus", "0-1"),
        ("cpuset.mems", "0"),
        ("cpuset.cpus.exclusive", "0"),
        ("cpuset.cpus.partition", "root invalid (no cpus)"),
        ("cgroup.subtree_control", "cpuset memory"),
    ] {
        let machine = Machine::new(&format!("{ROOT_V2}//- /sys/fs/cgroup/jobs/{file}\n\n"));
        let root = &machine.root;
        let dedicated = begin(root, &[3], Balancing::Balanced).expect("dedicated");
        root.write(&format!("/sys/fs/cgroup/jobs/{file}"), content).expect("somebody else");
        let report = dedicated.undo().expect("undone");
        assert!(report.is_complete() && pending(root).is_empty(), "{report:?}");
        let left: Vec<&str> = report.left.iter().map(|left| left.path.as_str()).collect();
        assert_eq!(left, ["/sys/fs/cgroup/cgroup.subtree_control"], "{file}");
        holds(root, "/sys/fs/cgroup", &[("cgroup.subtree_control", "+cpuset")]);
    }
    let unset = "//- /sys/fs/cgroup/jobs/cpuset.{cpus,mems,cpus.exclusive}\n\n\
                 //- /sys/fs/cgroup/jobs/cpuset.cpus.partition\nmember\n\
                 //- /sys/fs/cgroup/jobs/cgroup.subtree_control\nmemory\n";
    let machine = Machine::new(&format!("{ROOT_V2}{unset}"));
    begin(&machine.root, &[3], Balancing::Balanced).expect("dedicated").undo().expect("undone");
    holds(&machine.root, "/sys/fs/cgroup", &[("cgroup.subtree_control", "-cpuset")]);
}

#[test]
fn says_who_has_a_cpu_as_well() {
    let machine = format!("{ROOT_V1}//- /sys/fs/cgroup/cpuset/jobs/cpuset.cpus\n1-2\n");
    let machine = Machine::new(&machine);
    let error = begin(&machine.root, &[2, 3], Balancing::Balanced).expect_err("a refusal");
    let expected = "the control group /sys/fs/cgroup/cpuset/jobs has cpu 2 as well";
    assert!(error.to_string().contains(expected), "{error}");
    begin(&machine.root, &[3], Balancing::Balanced).expect("another is free");
}

#[test]
fn says_which_cpus_others_have_for_themselves() {
    let check = |machine: &str, expected: &[(&str, &[u32])]| {
        let held = cpusets::held_by_others(&Machine::new(machine).root);
        let held: Vec<(&str, Vec<CpuId>)> =
            held.iter().map(|held| (held.group.as_str(), held.cpus.clone())).collect();
        let expected: Vec<(&str, Vec<CpuId>)> =
            expected.iter().map(|(group, numbers)| (*group, cpus(numbers))).collect();
        assert_eq!(held, expected);
    };
    check("//- /proc/self/mounts\n", &[]);
    let partition = |group: &str, kind: &str, list: &str| {
        let group = format!("//- /sys/fs/cgroup/{group}");
        format!("{group}/cpuset.cpus.partition\n{kind}\n{group}/cpuset.cpus.effective\n{list}\n")
    };
    // This session is below `user`, whatever kind of group `user` is. A member, or a partition that
    // is no longer valid, has no CPUs of its own.
    let machine = [
        SESSION_V2.to_owned(),
        partition("user", "root", "0-3"),
        partition("user/session", "member", "0-3"),
        partition("jobs", "member", "0-3"),
        partition("jobs/fast", "isolated", "2-3"),
        partition("broken", "root invalid (no cpus)", "1"),
    ];
    check(&machine.concat(), &[("/sys/fs/cgroup/jobs/fast", &[2, 3])]);
    let cpuset = |group: &str, exclusive: u8, balanced: u8, list: &str| {
        let group = format!("//- /sys/fs/cgroup/cpuset/{group}/cpuset");
        format!(
            "{group}.cpu_exclusive\n{exclusive}\n{group}.sched_load_balance\n{balanced}\n{group}.cpus\n{list}\n"
        )
    };
    let machine = [
        ROOT_V1.to_owned(),
        cpuset("shared", 0, 0, "0"),
        cpuset("parted", 1, 1, "1"),
        cpuset("parted/own", 1, 0, "1"),
    ];
    check(&machine.concat(), &[("/sys/fs/cgroup/cpuset/parted/own", &[1])]);
}

#[test]
fn refuses_while_another_process_changes_the_same() {
    let machine = Machine::new(ROOT_V2);
    let first = begin(&machine.root, &[1], Balancing::Balanced).expect("dedicated");
    let error = begin(&machine.root, &[2], Balancing::Balanced).expect_err("a refusal");
    assert!(error.to_string().contains("has changed"), "{error}");
    drop(first);
    begin(&machine.root, &[2], Balancing::Balanced).expect("free again");
}
