//! Made-up machines whose file stands for the kernel's.

use std::fs;

use expect_test::{Expect, expect};
use tempfile::TempDir;

use super::*;
use crate::journal::{Journal, JournalError, OfLive, restore};
use crate::topology;

/// Two power domains in a package: one with the CPUs 0 and 4 of core 0, and 1 of core 1; another
/// with the CPUs 2 and 3, each of a core.
const DEVICE_TEXT: &str = "\
version: 2
cpu 0: 0x0
cpu 4: 0x1
cpu 1: 0x8
cpu 2: 0x800
cpu 3: 0x838
package 0 domain 0 supported: 1
package 0 domain 0 state: 0x0
package 0 domain 0 class 0: 0xff0000
package 0 domain 0 class 1: 0xff0000
package 0 domain 0 class 2: 0xff0000
package 0 domain 0 class 3: 0xff0000
package 0 domain 0 core 0: 0x0
package 0 domain 0 core 1: 0x0
package 0 domain 1 supported: 1
package 0 domain 1 state: 0x3
package 0 domain 1 class 0: 0xff1500
package 0 domain 1 class 1: 0xff0000
package 0 domain 1 class 2: 0x150070
package 0 domain 1 class 3: 0x0800f0
package 0 domain 1 core 0: 0x3
package 0 domain 1 core 7: 0x1
";

fn machine(device: &str) -> (TempDir, Root) {
    let directory = tempfile::tempdir().unwrap();
    let root = Root::new(directory.path());
    put(&root, DEVICE, device);
    put(&root, &format!("{}/online", topology::CPUS), "0-4\n");
    for cpu in 0..5 {
        put(&root, &format!("{}/cpu{cpu}/topology/physical_package_id", topology::CPUS), "0\n");
    }
    (directory, root)
}

fn put(root: &Root, path: &str, content: &str) {
    let path = root.path(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// The text of the device with another line in the place of that with the same name.
fn with(line: &str) -> String {
    let name = line.split_once(": ").unwrap().0;
    let lines: Vec<&str> = DEVICE_TEXT
        .lines()
        .map(|known| if known.split_once(": ").unwrap().0 == name { line } else { known })
        .collect();
    assert!(lines.contains(&line), "{line}");
    lines.join("\n")
}

fn id(domain: u8) -> DomainId {
    DomainId { package: 0, domain }
}

#[test]
fn reads_domains_with_their_classes_and_cores() {
    let (_directory, root) = machine(DEVICE_TEXT);
    let found = read(&root).unwrap();
    let cpus = |numbers: &[u32]| numbers.iter().map(|cpu| CpuId::new(*cpu)).collect::<Vec<_>>();
    let core = |number, of: &[u32], class| Core { number, cpus: cpus(of), class };
    let [first, second] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((first.id, second.id), (id(0), id(1)));
    assert_eq!(first.state, State { is_on: false, is_ordered: false });
    assert_eq!((first.classes, first.feature), ([0xff_0000; 4], None));
    assert_eq!(first.cores, [core(0, &[0, 4], 0), core(1, &[1], 0)]);
    assert_eq!(second.cores, [core(0, &[2], 3), core(7, &[3], 1)]);
    assert_eq!(Class::of_word(second.classes[3]), Class { weight: 15, min: 0, max: 8 });
    let text: Vec<String> = found.iter().map(Domain::describe).collect();
    expect![[r#"
        package 0 domain 0: off, 2 cores
        package 0 domain 1: on, ordered, class 0 (weight 0, at least 2100 MHz): 0 of 2 cores, class 1 (weight 0, any clock): 1 of 2 cores, class 2 (weight 7, at most 2100 MHz): 0 of 2 cores, class 3 (weight 15, at most 800 MHz): 1 of 2 cores
    "#]].assert_eq(&(text.join("\n") + "\n"));
}

#[track_caller]
fn check_missing(device: &str, expected: &Expect) {
    let (_directory, root) = machine(device);
    let missing = read(&root).unwrap_err();
    expected.assert_eq(&format!("{}\n-> {}\n", missing.why, missing.remedy));
}

#[test]
fn names_what_is_missing() {
    check_missing(
        &with("version: 1"),
        &expect![[r#"
            /dev/isst_interface: it has no TPMI, no mailbox and no registers
            -> as root: modprobe isst_tpmi (Sierra Forest, Granite Rapids and later), or isst_if_mbox_pci and isst_if_mmio (Ice Lake to Emerald Rapids servers)
        "#]],
    );
    check_missing(
        &with("version: error 25"),
        &expect![[r#"
            /dev/isst_interface: Inappropriate ioctl for device (os error 25)
            -> as root: modprobe isst_tpmi (Sierra Forest, Granite Rapids and later), or isst_if_mbox_pci and isst_if_mmio (Ice Lake to Emerald Rapids servers)
        "#]],
    );
    check_missing(
        &with("package 0 domain 0 supported: error 25"),
        &expect![[r#"
            /dev/isst_interface does not answer for package 0 domain 0: Inappropriate ioctl for device (os error 25)
            -> as root: modprobe isst_tpmi (Sierra Forest, Granite Rapids and later), or isst_if_mbox_pci and isst_if_mmio (Ice Lake to Emerald Rapids servers)
        "#]],
    );
    check_missing(
        &with("package 0 domain 1 supported: error 14"),
        &expect![[r"
        /dev/isst_interface does not answer for package 0 domain 1: Bad address (os error 14)
        -> switch HWP on: without it the kernel refuses
    "]],
    );
    check_missing(
        &with("package 0 domain 0 class 2: error 22"),
        &expect![[r#"
            /dev/isst_interface does not answer for package 0 domain 0 class 2: Invalid argument (os error 22)
            -> use a processor with it
        "#]],
    );
    check_missing(
        &with("package 0 domain 0 core 1: error 1"),
        &expect![[r"
        /dev/isst_interface does not answer for package 0 domain 0 core 1: Operation not permitted (os error 1)
        -> run as root
    "]],
    );
    check_missing(
        &with("package 0 domain 1 supported: 0"),
        &expect![[r"
        the processor has no core power in package 0 domain 1
        -> use a processor with it
    "]],
    );
    check_missing(
        &with("cpu 3: 0x1000"),
        &expect![[r#"
            /dev/isst_interface does not answer for package 0 domain 2: Invalid argument (os error 22)
            -> use a processor with it
        "#]],
    );
    check_missing(
        &with("cpu 3: 0xffffffff"),
        &expect![[r"
        the kernel does not report the power domain of CPU 3
        -> use another kernel
    "]],
    );
    check_missing(
        "nonsense\u{0}\n",
        &expect![[r#"
            /dev/isst_interface: Invalid argument (os error 22)
            -> as root: modprobe isst_tpmi (Sierra Forest, Granite Rapids and later), or isst_if_mbox_pci and isst_if_mmio (Ice Lake to Emerald Rapids servers)
        "#]],
    );
    let (_directory, root) = machine(DEVICE_TEXT);
    fs::remove_file(root.path(DEVICE)).unwrap();
    assert_eq!(read(&root).unwrap_err().why, "no /dev/isst_interface");
}

#[test]
fn a_file_that_may_not_be_opened_or_changed_is_named() {
    use std::os::unix::fs::PermissionsExt as _;
    let (_directory, root) = machine(&with("package 0 domain 1 state: 0x0"));
    let allow = |mode| {
        fs::set_permissions(root.path(DEVICE), fs::Permissions::from_mode(mode)).unwrap();
    };
    let domains = read(&root).unwrap();
    assert_eq!(check(&root, &domains), Ok(()));
    allow(0o444);
    let why = check(&root, &domains).unwrap_err().why;
    assert_eq!(why, "no permission to write /dev/isst_interface");
    let error = write(&root, Place::Core(id(0), 0), 1).unwrap_err();
    assert_eq!(error.kind(), Some(io::ErrorKind::PermissionDenied));
    allow(0o000);
    let why = read(&root).unwrap_err().why;
    assert_eq!(why, "/dev/isst_interface: Permission denied (os error 13)");
}

#[test]
fn what_is_on_already_is_not_for_requests() {
    let (_directory, root) = machine(DEVICE_TEXT);
    let domains = read(&root).unwrap();
    let why = || check(&root, &domains).unwrap_err().why;
    assert_eq!(why(), "package 0 domain 1 has it on already, by the firmware or another program");
    let (mut journal, _) = Journal::open(&root).unwrap();
    journal.change_core_power(Place::Core(id(1), 7), 2).unwrap();
    let process = std::process::id();
    let path = format!("{DEVICE} package 0 domain 1 core 7");
    let busy = format!("process {process} has changed {path} and not yet restored it");
    let refused = || check(&root, &domains).map_err(|missing| (missing.why, missing.remedy));
    assert_eq!(refused(), Err((busy, "wait for its end".to_owned())));
    // The owner has ended.
    let names = root.list("/run/dimmer").unwrap();
    let name = names.iter().find(|name| name.starts_with("journal.")).unwrap();
    let kept = fs::read_to_string(root.path(&format!("/run/dimmer/{name}"))).unwrap();
    journal.undo().unwrap();
    put(&root, "/run/dimmer/journal.1.0", &kept);
    let gone = format!("process 1 has changed {path} and not yet restored it");
    assert_eq!(refused(), Err((gone, RESTORE.to_owned())));
    // Its changes are to stay.
    fs::rename(root.path("/run/dimmer/journal.1.0"), root.path("/run/dimmer/kept.1.0")).unwrap();
    let kept = JournalError::Kept { path }.to_string();
    assert_eq!(refused(), Err((kept, RESTORE.to_owned())));
    // A journal of another domain does not count.
    fs::remove_file(root.path("/run/dimmer/kept.1.0")).unwrap();
    let (mut journal, _) = Journal::open(&root).unwrap();
    journal.change_core_power(Place::Core(id(0), 0), 2).unwrap();
    assert_eq!(why(), "package 0 domain 1 has it on already, by the firmware or another program");
}

#[test]
fn places_have_one_name_each() {
    for place in [
        Place::Feature(id(3)),
        Place::State(id(0)),
        Place::Class(id(255), 3),
        Place::Core(id(7), 255),
    ] {
        assert_eq!(Place::parse(&place.to_string()), Some(place));
    }
    for name in [
        "",
        "package 0 domain 0",
        "package 0 domain 0 class",
        "package 0 domain 0 class 01",
        "package 0 domain 0 class 4",
        "package 256 domain 0 state",
        "package 0 domain 0 state 1",
        "package 0  domain 0 state",
    ] {
        assert_eq!(Place::parse(name), None, "{name}");
    }
}

#[test]
fn words_are_those_of_the_registers() {
    let class = Class { weight: 15, min: 21, max: 38 };
    assert_eq!(class.word(), 0x26_15f0);
    assert_eq!(Class::of_word(0x26_15f0), class);
    for word in 0..4 {
        assert_eq!(State::of_word(word).word(), word);
    }
    let ratios = [0, 1, 100_000, 100_001, 25_500_000, 90_000_000];
    let ratios = ratios.map(|khz| Class::ratio(KiloHertz::from_khz(khz)));
    assert_eq!(ratios, [0, 1, 1, 2, 255, 255]);
}

#[test]
fn changes_are_undone_the_last_first() {
    let (_directory, root) = machine(DEVICE_TEXT);
    let (mut journal, _) = Journal::open(&root).unwrap();
    let places = [Place::Class(id(0), 2), Place::Core(id(0), 1), Place::State(id(0))];
    for (place, word) in places.into_iter().zip([0x15_0000, 2, 3]) {
        journal.change_core_power(place, word).unwrap();
        assert_eq!(held(&root, place).unwrap(), word);
        // The same again is no change.
        journal.change_core_power(place, word).unwrap();
    }
    journal.change_core_power(places[1], 3).unwrap();
    let report = journal.undo().unwrap();
    let restored: Vec<&str> = report.restored.iter().map(|one| one.path.as_str()).collect();
    assert_eq!(restored, [places[1], places[2], places[0]].map(Place::name));
    assert!(report.is_complete() && report.left.is_empty(), "{report:?}");
    assert_eq!(root.text(DEVICE).unwrap(), DEVICE_TEXT.trim_end());
    assert_eq!(root.list("/run/dimmer").unwrap(), ["lock"]);
}

/// The journal of a process that was killed.
fn killed(root: &Root) {
    let (mut journal, _) = Journal::open(root).unwrap();
    journal.change_core_power(Place::Core(id(0), 0), 1).unwrap();
    journal.change_core_power(Place::State(id(0)), 3).unwrap();
    let names = root.list("/run/dimmer").unwrap();
    let name = names.iter().find(|name| name.starts_with("journal.")).unwrap();
    let kept = fs::read(root.path(&format!("/run/dimmer/{name}"))).unwrap();
    let changed = root.text(DEVICE).unwrap();
    journal.undo().unwrap();
    put(root, DEVICE, &changed);
    put(root, "/run/dimmer/journal.1.0", std::str::from_utf8(&kept).unwrap());
}

#[test]
fn what_a_killed_process_has_left_is_restored() {
    let (_directory, root) = machine(DEVICE_TEXT);
    killed(&root);
    let report = restore(&root, OfLive::Leave).unwrap();
    assert_eq!((report.restored.len(), report.is_complete()), (2, true), "{report:?}");
    assert_eq!(root.text(DEVICE).unwrap(), DEVICE_TEXT.trim_end());
    assert_eq!(root.list("/run/dimmer").unwrap(), ["lock"]);
}

#[test]
fn what_another_program_has_set_since_is_left() {
    let (_directory, root) = machine(DEVICE_TEXT);
    killed(&root);
    write(&root, Place::Core(id(0), 0), 2).unwrap();
    let report = restore(&root, OfLive::Leave).unwrap();
    let left: Vec<_> = report.left.iter().map(|left| (left.path.as_str(), &*left.found)).collect();
    let [state, core] =
        ["state", "core 0"].map(|name| format!("{DEVICE} package 0 domain 0 {name}"));
    // They use the domain, which stays on.
    assert_eq!(left, [(state.as_str(), "0x3"), (core.as_str(), "0x2")]);
    assert_eq!(held(&root, Place::State(id(0))).unwrap(), 3);
    assert_eq!(root.list("/run/dimmer").unwrap(), ["lock"]);
}

/// The processor is busy for a while, and signals interrupt calls.
#[test]
fn calls_are_repeated() {
    let next = |answers: &[u32]| -> String {
        answers.iter().map(|error| format!("next: error {error}\n")).collect()
    };
    for answers in [&[16, 16, 16][..], &[4; 30], &[4, 16, 4]] {
        let (_directory, root) = machine(&(DEVICE_TEXT.to_owned() + &next(answers)));
        assert_eq!(held(&root, Place::State(id(1))).unwrap(), 3, "{answers:?}");
        assert_eq!(root.text(DEVICE).unwrap(), DEVICE_TEXT.trim_end());
    }
    for (answers, text) in [(vec![16; 4], "Device or resource busy"), (vec![4; 101], "Interrupted")]
    {
        let (_directory, root) = machine(&(DEVICE_TEXT.to_owned() + &next(&answers)));
        let missing = read(&root).unwrap_err();
        assert!(missing.why.contains(text), "{missing:?}");
        assert_eq!(missing.remedy, "try again");
    }
    // All tries of one call fail when it is undone: there is a second one.
    let (_directory, root) = machine(DEVICE_TEXT);
    let (mut journal, _) = Journal::open(&root).unwrap();
    journal.change_core_power(Place::Core(id(0), 1), 2).unwrap();
    let now = root.text(DEVICE).unwrap();
    put(&root, DEVICE, &format!("{now}\n{}", next(&[16; 9])));
    let report = journal.undo().unwrap();
    assert_eq!((report.restored.len(), report.is_complete()), (1, true), "{report:?}");
    assert_eq!(root.text(DEVICE).unwrap(), DEVICE_TEXT.trim_end());
}

/// With TPMI, the state that is read follows the one that is written.
#[test]
fn a_state_that_lags_is_awaited_and_undone() {
    for (lag, is_in_time) in [(3, true), (1000, false)] {
        let text = DEVICE_TEXT.to_owned() + &format!("lag: {lag}");
        let (_directory, root) = machine(&text);
        let place = Place::State(id(0));
        let (mut journal, _) = Journal::open(&root).unwrap();
        let result = journal.change_core_power(place, 3);
        match result {
            Ok(()) => assert!(is_in_time && held(&root, place).unwrap() == 3),
            Err(JournalError::NotTaken { found, .. }) => assert!(!is_in_time && found == "0x0"),
            other => panic!("{other:?}"),
        }
        // Killed there, and where the change does not yet show: it is undone all the same.
        let report = journal.undo().unwrap();
        assert!(report.is_complete() && report.left.is_empty(), "{report:?}");
        assert_eq!(report.restored.len(), usize::from(is_in_time));
        assert_eq!(root.text(DEVICE).unwrap(), text);
    }
}

/// A state that does not come back keeps the journal.
#[test]
fn a_state_that_stays_is_reported() {
    let (_directory, root) = machine(DEVICE_TEXT);
    let place = Place::State(id(0));
    let (mut journal, _) = Journal::open(&root).unwrap();
    journal.change_core_power(place, 3).unwrap();
    let now = root.text(DEVICE).unwrap();
    put(&root, DEVICE, &(now.clone() + "\nlag: 1000"));
    let report = journal.undo().unwrap();
    let [failed] = report.failed.as_slice() else { panic!("{report:?}") };
    assert!(failed.path.ends_with("domain 0 state") && failed.why.contains("holds 0x3"));
    put(&root, DEVICE, &now);
    let report = restore(&root, OfLive::Leave).unwrap();
    assert_eq!((report.restored.len(), report.is_complete()), (1, true), "{report:?}");
}

/// The CPUs that this process may run on do not stand for those that are online.
#[test]
fn without_the_list_of_cpus_nothing_is_read() {
    let (_directory, root) = machine(DEVICE_TEXT);
    fs::remove_file(root.path(&format!("{}/online", topology::CPUS))).unwrap();
    let missing = read(&root).unwrap_err();
    assert!(missing.why.contains("cpu/online"), "{missing:?}");
    assert_eq!(missing.remedy, "mount /sys");
}

#[test]
fn errors_name_the_place() {
    let (_directory, root) = machine(&with("package 0 domain 0 class 2: error 22"));
    let place = Place::Class(id(0), 2);
    let errors = [
        held(&root, place).map(|_| ()),
        write(&root, place, 1),
        changed(&root, [(place, 1)]).map(|_| ()),
    ];
    for error in errors {
        let error = error.unwrap_err().to_string();
        assert!(error.ends_with("/dev/isst_interface package 0 domain 0 class 2"), "{error}");
    }
    let (_directory, root) = mailbox_machine();
    put(&root, &format!("{}/online", topology::CPUS), "0-2\n");
    let error = held(&root, Place::State(DomainId { package: 1, domain: 0 })).unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(source, "no CPU of package 1 domain 0 is online");
}

/// The modules are unloaded: the processor keeps what was set, so the journal stays.
#[test]
fn a_journal_stays_until_the_device_is_back() {
    let (_directory, root) = machine(DEVICE_TEXT);
    killed(&root);
    let there = root.text(DEVICE).unwrap();
    fs::remove_file(root.path(DEVICE)).unwrap();
    let report = restore(&root, OfLive::Leave).unwrap();
    assert_eq!(report.failed.len(), 2, "{report:?}");
    assert!(report.failed[0].why.contains("No such file"), "{report:?}");
    put(&root, DEVICE, &there);
    let report = restore(&root, OfLive::Leave).unwrap();
    assert_eq!((report.restored.len(), report.is_complete()), (2, true), "{report:?}");
}

#[test]
fn a_change_that_is_refused_leaves_nothing() {
    let (_directory, root) = machine(&(DEVICE_TEXT.to_owned() + "writes: error 1\n"));
    let before = root.text(DEVICE).unwrap();
    let (mut journal, _) = Journal::open(&root).unwrap();
    let refused = journal.change_core_power(Place::State(id(0)), 3);
    let Err(JournalError::Change(error)) = refused else { panic!("{refused:?}") };
    assert_eq!(error.kind(), Some(io::ErrorKind::PermissionDenied));
    assert!(journal.undo().unwrap().is_complete());
    assert_eq!(root.text(DEVICE).unwrap(), before);
}

#[test]
fn a_place_that_another_process_has_changed_is_busy() {
    let (_directory, root) = machine(DEVICE_TEXT);
    let place = Place::Class(id(0), 1);
    let (mut first, _) = Journal::open(&root).unwrap();
    first.change_core_power(place, 0x08_0000).unwrap();
    let (mut second, _) = Journal::open(&root).unwrap();
    let busy = second.change_core_power(place, 0x09_0000);
    assert!(matches!(busy, Err(JournalError::Busy { .. })), "{busy:?}");
}

/// Before TPMI: two packages, each a domain, whose first CPUs answer for them.
fn mailbox_text() -> String {
    let mut text = "version: 1\nmailbox: 1\nregisters: 1\n".to_owned();
    // Two CPUs of core 0 and one of core 3; two cores of the other package.
    for (cpu, physical) in [(0, 0), (1, 1), (2, 6), (3, 0x400), (4, 0x402)] {
        text += &format!("cpu {cpu}: {physical:#x}\n");
    }
    for (cpu, cores) in [(0, [0, 3]), (3, [0, 1])] {
        // Other bits must stay, also those of the registers.
        text += &format!("cpu {cpu} mailbox 0x94 0x3: 0x1\ncpu {cpu} mailbox 0xd0 0x2: 0x11\n");
        for class in 0..4 {
            text += &format!("cpu {cpu} register {:#x}: 0x1ff000c\n", 0x8 + 4 * class);
        }
        for core in cores {
            text += &format!("cpu {cpu} register {:#x}: 0x40000001\n", 0x20 + 4 * core);
        }
    }
    text
}

fn mailbox_machine() -> (TempDir, Root) {
    let (directory, root) = machine(&mailbox_text());
    for cpu in [3, 4] {
        put(&root, &format!("{}/cpu{cpu}/topology/physical_package_id", topology::CPUS), "1\n");
    }
    (directory, root)
}

#[test]
fn a_mailbox_and_registers_have_the_same_places_and_keep_other_bits() {
    let (_directory, root) = mailbox_machine();
    let found = read(&root).unwrap();
    let ids: Vec<DomainId> = found.iter().map(|domain| domain.id).collect();
    let second = DomainId { package: 1, domain: 0 };
    assert_eq!(ids, [id(0), second]);
    let cores: Vec<u8> = found[0].cores.iter().map(|core| core.number).collect();
    assert_eq!((cores, found[0].cores[0].cpus.len()), (vec![0, 3], 2));
    assert_eq!((found[1].feature, found[1].classes), (Some(false), [0xff_0000; 4]));
    assert_eq!(check(&root, &found), Ok(()));
    let (mut journal, _) = Journal::open(&root).unwrap();
    let changes = [
        (Place::Class(second, 2), 0x15_1500, "cpu 3 register 0x10: 0x115150c"),
        (Place::Core(second, 1), 3, "cpu 3 register 0x24: 0x40030001"),
        (Place::Feature(second), 1, "cpu 3 mailbox 0x94 0x3: 0x10001"),
        (Place::State(second), 3, "cpu 3 mailbox 0xd0 0x2: 0x17"),
    ];
    for (place, word, line) in changes {
        journal.change_core_power(place, word).unwrap();
        assert_eq!(held(&root, place).unwrap(), word, "{place}");
        assert!(root.text(DEVICE).unwrap().lines().any(|known| known == line), "{line}");
    }
    let left = changes.map(|(place, word, _)| (place, word));
    assert_eq!(changed(&root, left).unwrap(), None);
    write(&root, Place::Core(second, 1), 1).unwrap();
    assert_eq!(changed(&root, left).unwrap(), Some((Place::Core(second, 1), 1)));
    write(&root, Place::Core(second, 1), 3).unwrap();
    assert!(read(&root).unwrap()[1].state.is_on);
    let report = journal.undo().unwrap();
    assert_eq!((report.restored.len(), report.is_complete()), (4, true), "{report:?}");
    assert_eq!(root.text(DEVICE).unwrap(), mailbox_text().trim_end());
}

#[test]
fn a_mailbox_without_registers_or_core_power_is_named() {
    for (line, part) in [
        ("registers: 0", "it has no TPMI and no registers"),
        ("mailbox: 0", "it has no TPMI and no mailbox"),
        ("cpu 0 mailbox 0x94 0x3: 0x10000", "no core power in package 0 domain 0"),
        ("cpu 0 mailbox 0x94 0x3: error 6", "for package 0 domain 0: No such device"),
        ("cpu 3 register 0x8: error 25", "for package 1 domain 0 class 0: Inappropriate ioctl"),
    ] {
        let (_directory, root) = mailbox_machine();
        let name = line.split_once(": ").unwrap().0;
        let lines: Vec<String> = mailbox_text()
            .lines()
            .map(|known| if known.split_once(": ").unwrap().0 == name { line } else { known })
            .map(str::to_owned)
            .collect();
        put(&root, DEVICE, &lines.join("\n"));
        let why = read(&root).unwrap_err().why;
        assert!(why.contains(part), "{why}");
    }
}
