//! P-states of made-up machines with made-up registers: read, refused, set, and set back.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;

use dimmer_host::capability::{State, Survey};
use dimmer_host::cpuid::Cpuid;
use dimmer_host::journal::{Journal, JournalError, OfLive, Owner, pending, restore};
use dimmer_host::pstate::{self, Part, Plan, Pstates, Redefinition, SetError, Wanted};
use dimmer_host::root::{Root, parse_cpu_list};
use dimmer_host::topology;
use dimmer_host::unavailable::Unavailable;
use dimmer_processor::units::{CpuId, KiloHertz, MicroVolts};

use crate::fixture::Machine;

/// CPUID of an AMD processor with this leaf 1.
fn amd(leaf_1: u32) -> String {
    format!(
        "0x00000000 0x00: eax=0x00000001 ebx=0x68747541 ecx=0x444d4163 edx=0x69746e65\n\
         0x00000001 0x00: eax={leaf_1:#010x} ebx=0x00000000 ecx=0x00000000 edx=0x00000000\n"
    )
}

/// CPUID of an i7-4770, with HWP or without.
fn haswell(hwp: u32) -> String {
    format!(
        "0x00000000 0x00: eax=0x00000006 ebx=0x756e6547 ecx=0x6c65746e edx=0x49656e69\n\
         0x00000001 0x00: eax=0x000306c3 ebx=0x00000000 ecx=0x00000000 edx=0x00000000\n\
         0x00000006 0x00: eax={hwp:#010x} ebx=0x00000000 ecx=0x00000000 edx=0x00000000\n"
    )
}

const FX_8120: u32 = 0x0060_0f12;
const RYZEN_1600X: u32 = 0x0080_0f11;

/// A machine of four CPUs, of which 0 and 1, and 2 and 3, share a core each, and 4 is offline.
fn machine(cpuid: &str, more: &str, registers: &[(u64, u64)]) -> Machine {
    let machine = Machine::new(&format!(
        "//- /cpuid.txt\n{cpuid}\
         //- /sys/devices/system/cpu/present\n0-4\n\
         //- /sys/devices/system/cpu/online\n0-3\n\
         //- /sys/devices/system/cpu/cpu{{0,1}}/topology/core_cpus_list\n0-1\n\
         //- /sys/devices/system/cpu/cpu{{2,3}}/topology/core_cpus_list\n2-3\n\
         //- /dev/cpu/{{0,1,2,3}}/msr\n{more}"
    ));
    for cpu in 0..4 {
        for &(register, value) in registers {
            write(&machine.root, cpu, register, value);
        }
    }
    machine
}

fn write(root: &Root, cpu: u32, register: u64, value: u64) {
    let file = OpenOptions::new().write(true).open(root.path(&format!("/dev/cpu/{cpu}/msr")));
    file.unwrap().write_all_at(&value.to_le_bytes(), 8 * register).unwrap();
}

fn register(root: &Root, cpu: u32, register: u64) -> u64 {
    let mut bytes = [0; 8];
    let file = File::open(root.path(&format!("/dev/cpu/{cpu}/msr"))).unwrap();
    file.read_exact_at(&mut bytes, 8 * register).unwrap();
    u64::from_le_bytes(bytes)
}

/// A definition of family 17h with a current of 94 of its units.
const fn of_17h(fid: u64, dfs: u64, vid: u64) -> u64 {
    1 << 63 | 94 << 22 | vid << 14 | dfs << 8 | fid
}

const P2: u64 = 0xC001_0066;
const REQUESTED: u64 = 0xC001_0062;
/// The cofvid register of family 15h is there as well, so that no file ends before it.
const LAST: u64 = 0xC001_0071;

/// The processor of paper 004, with a governor for each core.
fn ryzen(more: &str) -> Machine {
    let policies = "//- /sys/devices/system/cpu/cpufreq/policy{0,2}/scaling_driver\nacpi-cpufreq\n\
         //- /sys/devices/system/cpu/cpufreq/policy{0,2}/scaling_governor\nschedutil\n\
         //- /sys/devices/system/cpu/cpufreq/policy{0,2}/scaling_available_governors\n\
         ondemand userspace schedutil\n\
         //- /sys/devices/system/cpu/cpufreq/policy0/affected_cpus\n0 1\n\
         //- /sys/devices/system/cpu/cpufreq/policy2/affected_cpus\n2 3\n";
    let registers = [
        (0xC001_0061, 0x20),
        (REQUESTED, 1),
        (0xC001_0063, 1),
        (0xC001_0064, of_17h(144, 8, 56)),
        (0xC001_0065, of_17h(100, 8, 88)),
        (P2, of_17h(132, 12, 120)),
        (LAST, 0),
    ];
    machine(&amd(RYZEN_1600X), &format!("{policies}{more}"), &registers)
}

/// The first processor of paper 002: two of its seven P-states are boosted.
fn fx(is_boost_known: bool) -> Machine {
    let of = |fid: u64, did: u64, vid: u64| 1 << 63 | vid << 9 | did << 6 | fid;
    let definitions = [
        of(24, 0, 11),
        of(18, 0, 11),
        of(15, 0, 22),
        of(12, 0, 27),
        of(7, 0, 37),
        of(3, 0, 48),
        of(12, 1, 54),
    ];
    let mut registers = vec![(0xC001_0061, 0x40), (REQUESTED, 0), (LAST, 1 << 16)];
    registers.extend((0xC001_0064..).zip(definitions));
    let machine = machine(&amd(FX_8120), "", &registers);
    if is_boost_known {
        let path = machine.root.path("/sys/bus/pci/devices/0000:00:18.4/config");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        File::create(path).unwrap().write_all_at(&[2 << 2 | 1, 0, 0, 0x80], 0x15C).unwrap();
    }
    machine
}

fn intel(hwp: u32, more: &str) -> Machine {
    let registers = [
        (0xCE, 0x8_0838_f301_2200),
        (0x198, 39 << 8),
        (0x199, 1 << 32 | 34 << 8),
        (0x1AD, 0x2526_2727),
        (0x770, 1),
    ];
    machine(&haswell(hwp), more, &registers)
}

fn read(root: &Root) -> Result<Pstates, Unavailable> {
    Pstates::read(root, &Cpuid::of(root).unwrap())
}

fn cpus(list: &str) -> Vec<CpuId> {
    parse_cpu_list(list).unwrap()
}

fn redefinition(number: u8, mhz: u64, mv: Option<u64>) -> Redefinition {
    let voltage = mv.map(MicroVolts::from_mv);
    Redefinition { number, frequency: KiloHertz::from_mhz(mhz), voltage }
}

/// Table 5.1: one core at P0, the others at P2, which is the slowest that it can be.
fn table_5_1() -> Wanted {
    Wanted {
        fast: Some(cpus("0-1")),
        definitions: vec![redefinition(2, 833, None)],
        ..Wanted::default()
    }
}

fn request(list: &str, number: u8) -> Wanted {
    Wanted { requests: vec![(cpus(list), number)], ..Wanted::default() }
}

#[track_caller]
fn set(journal: &mut Journal, wanted: &Wanted) -> Result<(), SetError> {
    let root = journal.root().clone();
    let pstates = read(&root).unwrap();
    let plan = Plan::new(&pstates, &topology::read(&root).unwrap(), wanted).unwrap();
    pstate::set(journal, &pstates, &plan)
}

fn open(machine: &Machine) -> Journal {
    Journal::open(&machine.root).unwrap().0
}

/// The requested P-states as the registers hold them, of CPUs 0 to 3.
fn requested(root: &Root) -> [u64; 4] {
    [0, 1, 2, 3].map(|cpu| register(root, cpu, REQUESTED))
}

#[test]
fn numbers_p_states_as_definitions_are_numbered() {
    let pstates = read(&fx(true).root).unwrap();
    let Part::Amd { states, fastest, slowest } = pstates.part else { panic!("{pstates:?}") };
    assert_eq!((states.base(), fastest, slowest), (2, 2, 6));
    let p6 = states.definition(6).unwrap();
    assert_eq!(p6.frequency, Some(KiloHertz::from_mhz(1400)));
    assert_eq!(p6.voltage, Some(MicroVolts::from_mv(875)));
    assert_eq!(states.definition(7), None);
    // It requests its base frequency and is boosted.
    let state = |cpu: &pstate::CpuState| (cpu.cpu.index(), cpu.requested, cpu.current);
    let found: Vec<_> = pstates.cpus.iter().map(state).collect();
    assert_eq!(found, [(0, 2, 1), (1, 2, 1), (2, 2, 1), (3, 2, 1)]);

    let machine = fx(true);
    let mut journal = open(&machine);
    set(&mut journal, &request("2-3", 6)).unwrap();
    assert_eq!(requested(&machine.root), [0, 0, 4, 4]);
    drop(journal);
    assert_eq!(requested(&machine.root), [0; 4]);
}

#[test]
fn sets_up_table_5_1_of_paper_004_and_sets_it_back() {
    let machine = ryzen("");
    let root = &machine.root;
    write(root, 3, REQUESTED, 2);
    let governor = |policy: &str| {
        root.text(&format!("/sys/devices/system/cpu/cpufreq/{policy}/scaling_governor")).unwrap()
    };
    let mut journal = open(&machine);
    set(&mut journal, &table_5_1()).unwrap();
    assert_eq!(requested(root), [0, 0, 2, 2]);
    for cpu in 0..4 {
        assert_eq!(register(root, cpu, P2), of_17h(50, 12, 120), "the same on all");
        assert_eq!(register(root, cpu, 0xC001_0064), of_17h(144, 8, 56));
    }
    assert_eq!([governor("policy0"), governor("policy2")], ["userspace", "userspace"]);

    let report = journal.undo().unwrap();
    assert!(report.is_complete() && report.left.is_empty(), "{report:?}");
    assert_eq!(requested(root), [1, 1, 1, 2]);
    for cpu in 0..4 {
        assert_eq!(register(root, cpu, P2), of_17h(132, 12, 120));
    }
    assert_eq!([governor("policy0"), governor("policy2")], ["schedutil", "schedutil"]);
}

#[test]
fn sets_aside_only_the_governors_of_cpus_that_request() {
    let machine = ryzen("");
    let governor = |policy: &str| {
        let path = format!("/sys/devices/system/cpu/cpufreq/{policy}/scaling_governor");
        machine.root.text(&path).unwrap()
    };
    let mut journal = open(&machine);
    let only = Wanted { definitions: vec![redefinition(1, 2000, None)], ..Wanted::default() };
    set(&mut journal, &only).unwrap();
    assert_eq!([governor("policy0"), governor("policy2")], ["schedutil", "schedutil"]);
    set(&mut journal, &request("2-3", 2)).unwrap();
    assert_eq!([governor("policy0"), governor("policy2")], ["schedutil", "userspace"]);
    assert_eq!(requested(&machine.root), [1, 1, 2, 2]);
}

#[test]
fn requests_ratios_of_intel_and_leaves_the_other_bits() {
    let machine = intel(0, "");
    let root = &machine.root;
    let pstates = read(root).unwrap();
    let Part::Intel { limits, has_hwp } = &pstates.part else { panic!("{pstates:?}") };
    assert_eq!((limits.lowest, limits.base, limits.highest(), *has_hwp), (8, 34, 39, false));
    assert_eq!((pstates.cpus[0].requested, pstates.cpus[0].current), (34, 39));
    let mut journal = open(&machine);
    let wanted = Wanted { slow: Some(cpus("2-3")), ..request("0-1", 20) };
    set(&mut journal, &wanted).unwrap();
    let control = || [0, 1, 2, 3].map(|cpu| register(root, cpu, 0x199));
    let with = |ratio: u64| 1 << 32 | ratio << 8;
    assert_eq!(control(), [with(20), with(20), with(8), with(8)]);
    drop(journal);
    assert_eq!(control(), [with(34); 4]);
}

#[test]
fn the_survey_has_the_p_states() {
    let machine = fx(true);
    let survey = Survey::take(&machine.root, &Cpuid::of(&machine.root).unwrap());
    let state = &survey.capability("p-states").unwrap().state;
    assert_eq!(*state, State::Available { detail: "P2 to P6".to_owned() });
}

#[track_caller]
fn not_read(machine: &Machine, why: &str, remedy: &str) {
    let missing = read(&machine.root).unwrap_err();
    assert!(missing.why.contains(why), "{missing}");
    assert!(missing.remedy.contains(remedy), "{missing}");
}

#[test]
fn says_why_p_states_cannot_be_read() {
    let text = format!("//- /cpuid.txt\n{}//- /sys/devices/system/cpu/online\n0\n", amd(FX_8120));
    let plain = |more: &str| Machine::new(&format!("{text}{more}"));
    not_read(&plain(""), "no /dev/cpu/0/msr", "modprobe msr");
    let locked = plain("//- /dev/cpu/0/msr mode=0000\n");
    not_read(&locked, "no permission to read", "run as root");
    // The registers are not there: the kernel returns EIO, a file ends.
    let empty = plain("//- /dev/cpu/0/msr\n");
    not_read(&empty, "does not answer for register 0xc0010064", "bare metal");
    not_read(&machine(&amd(FX_8120), "", &[(LAST, 0)]), "no P-state is defined", "bare metal");
    not_read(&machine(&haswell(0), "", &[(0x1AD, 0)]), "has no ratios", "bare metal");
    not_read(&fx(false), "number of boosted P-states", "run as root");
    let old = machine(&amd(0x0010_0f42), "", &[]);
    not_read(&old, "AuthenticAMD family 0x10 model 0x4 are not known", "families 0x15, 0x17");
}

#[track_caller]
fn not_set(machine: &Machine, wanted: &Wanted, why: &str, remedy: &str) {
    let mut journal = open(machine);
    match set(&mut journal, wanted) {
        Err(SetError::Unavailable(missing)) => {
            assert!(missing.why.contains(why), "{missing}");
            assert!(missing.remedy.contains(remedy), "{missing}");
        }
        other => panic!("expected a refusal, found {other:?}"),
    }
    drop(journal);
    assert!(!machine.root.exists("/run/dimmer"), "nothing is written for a refusal");
}

#[test]
fn says_what_is_in_the_way_before_anything_changes() {
    let locked = "//- /sys/kernel/security/lockdown\nnone [integrity] confidentiality\n";
    not_set(&ryzen(locked), &table_5_1(), "locked down", "Secure Boot");
    let open = "//- /sys/kernel/security/lockdown\n[none] integrity confidentiality\n";
    set(&mut Journal::open(&ryzen(open).root).unwrap().0, &table_5_1()).unwrap();
    let refused = "//- /sys/module/msr/parameters/allow_writes\noff\n";
    not_set(&ryzen(refused), &table_5_1(), "allow_writes is off", "echo on");
    let unwritable = "//- /dev/cpu/2/msr mode=0444\n";
    let machine = ryzen(unwritable);
    not_set(&machine, &table_5_1(), "no permission to write /dev/cpu/2/msr", "run as root");

    let policy = "//- /sys/devices/system/cpu/cpufreq/policy2";
    let cppc = format!("{policy}/scaling_driver\namd-pstate-epp\n");
    not_set(&ryzen(&cppc), &table_5_1(), "amd-pstate-epp", "amd_pstate=disable");
    let no_userspace = format!("{policy}/scaling_available_governors\nperformance\n");
    let machine = ryzen(&no_userspace);
    not_set(&machine, &table_5_1(), "governor schedutil of", "modprobe cpufreq_userspace");
    let read_only = format!("{policy}/scaling_governor mode=0444\nondemand\n");
    not_set(&ryzen(&read_only), &table_5_1(), "no permission to write", "run as root");

    let turbo_off = Wanted { turbo_off: true, ..table_5_1() };
    not_set(&ryzen(""), &turbo_off, "cpufreq/boost", "firmware");

    not_set(&intel(1 << 7, ""), &request("0-1", 20), "HWP", "intel_pstate=no_hwp");
    let active = format!("{policy}/scaling_driver\nintel_pstate\n{policy}/affected_cpus\n0 1\n");
    not_set(&intel(0, &active), &request("0-1", 20), "intel_pstate writes", "echo passive");
}

#[track_caller]
fn not_planned(machine: &Machine, wanted: &Wanted, why: &str) {
    let pstates = read(&machine.root).unwrap();
    let topology = topology::read(&machine.root).unwrap();
    let refused = Plan::new(&pstates, &topology, wanted).unwrap_err();
    assert_eq!(refused.to_string(), why);
}

#[test]
fn says_what_cannot_be_asked_for() {
    let (ryzen, fx, intel) = (ryzen(""), fx(true), intel(0, ""));
    let nothing = "nothing to set: give --fast, --slow, --request or --define";
    not_planned(&ryzen, &Wanted::default(), nothing);
    let online = "online are 0-3";
    not_planned(&ryzen, &request("4", 0), &format!("CPU 4 is offline; {online}"));
    not_planned(&ryzen, &request("9", 0), &format!("CPU 9 does not exist; {online}"));
    let shared = "CPUs 2-3 share their clock: name all of them for the same P-state";
    not_planned(&ryzen, &request("0-2", 0), shared);
    let split = Wanted { slow: Some(cpus("3")), ..request("2", 0) };
    not_planned(&ryzen, &split, shared);
    let twice = Wanted { slow: Some(cpus("0-3")), ..request("0-1", 0) };
    not_planned(&ryzen, &twice, "CPU 0 is to request P0 and P2: name it once");
    let boosted = "P1 is boosted: only the processor chooses it; the fastest to request is P2";
    not_planned(&fx, &request("0-1", 1), boosted);
    let limits = "cannot be requested; the fastest is";
    not_planned(&fx, &request("0-1", 7), &format!("P7 {limits} P2, the slowest P6"));
    not_planned(&ryzen, &request("0-1", 3), &format!("P3 {limits} P0, the slowest P2"));
    not_planned(&intel, &request("0-1", 7), &format!("P7 {limits} P39, the slowest P8"));
    not_planned(&intel, &request("0-1", 40), &format!("P40 {limits} P39, the slowest P8"));
    let define = |number, mhz, mv| Wanted {
        definitions: vec![redefinition(number, mhz, mv)],
        ..Wanted::default()
    };
    let fixed = "this processor has ratios within fixed limits, and no definitions to change";
    not_planned(&intel, &define(20, 2000, None), fixed);
    not_planned(
        &ryzen,
        &define(2, 833, Some(1300)),
        "1300 mV is outside of 800 mV to 1200 mV, which this processor uses at 833 MHz",
    );
    write(&ryzen.root, 3, P2, of_17h(132, 12, 100));
    not_planned(
        &ryzen,
        &define(2, 833, None),
        "CPUs 3 have other definitions than CPU 0; `dimmer restore` undoes changes of Dimmer's, \
         a restart those of others",
    );
}

#[test]
fn requests_within_a_lower_limit_alone() {
    let machine = ryzen("");
    // The processor is hot: it allows P1 at most.
    write(&machine.root, 0, 0xC001_0061, 0x21);
    let why = "P0 cannot be requested; the fastest is P1, the slowest P2";
    not_planned(&machine, &request("0-1", 0), why);
}

#[test]
fn keeps_changes_until_they_are_restored() {
    let machine = ryzen("");
    let root = &machine.root;
    let mut journal = open(&machine);
    set(&mut journal, &table_5_1()).unwrap();
    journal.keep().unwrap();
    assert_eq!(requested(root), [0, 0, 2, 2]);
    assert!(pending(root).iter().all(|one| one.owner == Owner::Kept) && !pending(root).is_empty());

    // The next journal undoes only what crashed processes have left.
    let (mut journal, report) = Journal::open(root).unwrap();
    assert!(report.is_empty(), "{report:?}");
    match set(&mut journal, &request("0-1", 1)) {
        Err(SetError::Journal(JournalError::Kept { path })) => {
            assert_eq!(path, "/dev/cpu/0/msr 0xc0010062");
        }
        other => panic!("expected a refusal, found {other:?}"),
    }
    drop(journal);
    assert_eq!(requested(root), [0, 0, 2, 2]);

    let report = restore(root, OfLive::Leave).unwrap();
    assert!(report.is_complete() && report.left.is_empty(), "{report:?}");
    assert_eq!(requested(root), [1; 4]);
    assert_eq!(register(root, 2, P2), of_17h(132, 12, 120));
    assert_eq!(root.list("/run/dimmer").unwrap(), ["lock"]);
}

#[test]
fn leaves_a_register_that_another_program_has_written() {
    let machine = ryzen("");
    let root = &machine.root;
    let mut journal = open(&machine);
    set(&mut journal, &request("0-1", 0)).unwrap();
    write(root, 0, REQUESTED, 2);
    let report = journal.undo().unwrap();
    let left: Vec<_> = report.left.iter().map(|left| left.path.as_str()).collect();
    assert_eq!(left, ["/dev/cpu/0/msr 0xc0010062"]);
    assert_eq!(requested(root), [2, 1, 1, 1]);
}
