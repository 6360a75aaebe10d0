//! What every mechanism of exclusion does: keeps threads off CPUs, and lets them back.

use std::process::Command;

use dimmer_host::affinity;
use dimmer_host::exclusion::{ByAffinity, ByCpusets, Exclusion};
use dimmer_host::root::Root;
use dimmer_processor::units::CpuId;

use crate::cpusets::{ROOT_V1, ROOT_V2, SESSION_V2, files};
use crate::fixture::Machine;

/// Checks that threads are kept off `cpus` and let back. `state` returns what others see of that.
#[track_caller]
fn check(
    mut exclusion: Box<dyn Exclusion>,
    cpus: &[CpuId],
    threads: &[u32],
    state: &dyn Fn() -> String,
) {
    let mut keep_off = |cpus: &[CpuId]| {
        let change = exclusion.keep_off(cpus, threads).expect("kept off");
        (change, exclusion.entrance(), state())
    };
    let before = state();
    let (nothing, entrance, still) = keep_off(&[]);
    assert_eq!((nothing.is_changed, entrance, &still), (false, None, &before));
    for _ in 0..2 {
        let (change, entrance, kept) = keep_off(cpus);
        assert!(change.is_changed && kept != before, "{kept}");
        let (again, same_entrance, same) = keep_off(cpus);
        assert_eq!((again.is_changed, same_entrance, &same), (false, entrance, &kept));
        let (change, entrance, after) = keep_off(&[]);
        assert_eq!((change.is_changed, entrance, &after), (true, None, &before));
        assert!(change.undone.is_none_or(|report| report.is_complete()));
    }
}

#[test]
fn cpusets_of_either_version_keep_threads_off_and_let_them_back() {
    for machine in [ROOT_V1, ROOT_V2, SESSION_V2] {
        let machine = Machine::new(machine);
        let root = machine.root.clone();
        let (exclusion, _) = ByCpusets::open(&root).expect("a journal");
        // The journal is a file, too, and a made-up machine keeps what was written into its files.
        let is_group = |path: &String| path.contains("cgroup");
        let state = || {
            let paths = files(&root).into_iter().map(|(path, _)| path);
            paths.filter(is_group).collect::<Vec<_>>().join("\n")
        };
        check(Box::new(exclusion), &[CpuId::new(2), CpuId::new(3)], &[], &state);
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "says that it was skipped")]
fn affinity_keeps_threads_off_and_lets_them_back() {
    let all = affinity::allowed().expect("allowed CPUs");
    let [_, .., last] = all.as_slice() else {
        println!("SKIPPED: needs two CPUs, and this process may run on one");
        return;
    };
    let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
    let thread = child.id();
    let noted = std::rc::Rc::new(std::cell::RefCell::new(String::new()));
    let note = std::rc::Rc::clone(&noted);
    let exclusion = ByAffinity::new(
        &Root::live(),
        |_, _| false,
        Box::new(move |text| text.clone_into(&mut note.borrow_mut())),
    );
    let state =
        || format!("{:?} {}", affinity::allowed_to(thread).expect("a thread"), noted.borrow());
    check(Box::new(exclusion), &[*last], &[thread], &state);
    let _ = child.kill();
    let _ = child.wait();
}
