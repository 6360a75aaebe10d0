//! A register that two modules of the kernel reach, `msr` and `msr-safe`, is one place.

use std::fs;

use dimmer_host::journal::{Journal, JournalError, Report, pending};
use dimmer_host::root::Root;

use crate::fixture::Machine;

#[track_caller]
fn restored(report: &Report) {
    let found: Vec<&str> = report.restored.iter().map(|one| one.path.as_str()).collect();
    assert_eq!(found, ["/dev/cpu/0/msr 0x199"], "{report:?}");
    assert!(report.is_complete() && report.left.is_empty(), "{report:?}");
}

/// A machine with a register of one CPU, which both modules reach: one file with two names.
fn with_register(value: u64) -> Machine {
    let machine = Machine::new("//- /dev/cpu/0/.keep\n//- /run/.keep\n");
    let [msr, safe] = MODULES.map(|path| machine.root.path(path));
    let mut bytes = vec![0; 0x1000];
    bytes[8 * 0x199..][..8].copy_from_slice(&value.to_le_bytes());
    fs::write(&msr, bytes).expect("a file");
    fs::hard_link(&msr, &safe).expect("its other name");
    machine
}

const MODULES: [&str; 2] = ["/dev/cpu/0/msr", "/dev/cpu/0/msr_safe"];

fn register(root: &Root, path: &str) -> u64 {
    let mut bytes = [0; 8];
    root.read_at(path, 8 * 0x199, &mut bytes).expect("a register");
    u64::from_le_bytes(bytes)
}

#[test]
fn a_register_that_both_modules_have_changed_gets_its_first_value() {
    let machine = with_register(0x1111);
    let [msr, safe] = MODULES;
    let (mut journal, _) = Journal::open(&machine.root).expect("a journal");
    journal.change_register(msr, 0x199, 0x2222).expect("a change");
    journal.change_register(safe, 0x199, 0x3333).expect("a change");
    assert_eq!(pending(&machine.root)[0].paths, ["/dev/cpu/0/msr 0x199"]);
    let report = journal.undo().expect("undone");
    restored(&report);
    assert_eq!(register(&machine.root, msr), 0x1111);
}

#[test]
fn a_register_that_one_process_has_changed_is_busy_by_the_other_module_too() {
    for [first, second] in [MODULES, [MODULES[1], MODULES[0]]] {
        let machine = with_register(0x1111);
        let (mut journal, _) = Journal::open(&machine.root).expect("a journal");
        journal.change_register(first, 0x199, 0x2222).expect("a change");
        let (mut other, _) = Journal::open(&machine.root).expect("a journal");
        let busy = other.change_register(second, 0x199, 0x3333);
        assert!(matches!(busy, Err(JournalError::Busy { .. })), "{busy:?}");
        // Another register is free.
        other.change_register(second, 0x1a0, 5).expect("a change");
        drop((journal, other));
        assert_eq!(register(&machine.root, first), 0x1111);
        assert_eq!(machine.root.list("/run/dimmer").expect("the directory"), ["lock"]);
    }
}

/// The module by which a register was changed is gone; the other one is there.
#[test]
fn a_register_is_undone_by_the_module_that_is_there() {
    for [by, gone] in [MODULES, [MODULES[1], MODULES[0]]] {
        let machine = with_register(0x1111);
        let (mut journal, _) = Journal::open(&machine.root).expect("a journal");
        journal.change_register(by, 0x199, 0x2222).expect("a change");
        fs::remove_file(machine.root.path(by)).expect("the module is unloaded");
        let report = journal.undo().expect("undone");
        restored(&report);
        assert_eq!(register(&machine.root, gone), 0x1111);
    }
}
