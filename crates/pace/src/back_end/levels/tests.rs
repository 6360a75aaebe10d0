//! Requests on made-up processors with HWP and with CPPC, without a driver for cpufreq.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};

use dimmer_host::pstate::SetError;
use dimmer_processor::units::{CpuId, KiloHertz};
use tempfile::TempDir;

use super::*;
use crate::Request;
use crate::back_end::{BackEnd as _, Refused, Thread};

const HWP_REQUEST: u64 = 0x774;
const CPPC_REQUEST: u64 = 0xC001_02B3;

/// A Skylake with HWP.
const INTEL: &str = "\
0x00000000 0x00: eax=0x00000006 ebx=0x756e6547 ecx=0x6c65746e edx=0x49656e69
0x00000001 0x00: eax=0x000506e3 ebx=0x00000000 ecx=0x00000000 edx=0x00000000
0x00000006 0x00: eax=0x00000080 ebx=0x00000000 ecx=0x00000000 edx=0x00000000
";
/// A Zen 3 with CPPC.
const AMD: &str = "\
0x00000000 0x00: eax=0x00000001 ebx=0x68747541 ecx=0x444d4163 edx=0x69746e65
0x00000001 0x00: eax=0x00a20f10 ebx=0x00000000 ecx=0x00000000 edx=0x00000000
0x80000000 0x00: eax=0x80000008 ebx=0x00000000 ecx=0x00000000 edx=0x00000000
0x80000008 0x00: eax=0x00000000 ebx=0x08000000 ecx=0x00000000 edx=0x00000000
";

/// Levels 8, 34 (3400 MHz) and 42, and a request with a preference of the kernel's.
const OF_INTEL: &[(u64, u64)] = &[
    (0xCE, 0x8_0838_f301_2200),
    (0x198, 39 << 8),
    (0x199, 34 << 8),
    (0x1AD, 0x2526_2727),
    (0x770, 1),
    (0x771, 0x080A_222A),
    (HWP_REQUEST, 0x8000_2A08),
];
/// Levels 15, 100 (P0: 3600 MHz) and 166.
const OF_AMD: &[(u64, u64)] = &[
    (0xC001_0061, 0x20),
    (0xC001_0062, 0),
    (0xC001_0063, 0),
    (0xC001_0064, 1 << 63 | 8 << 8 | 144),
    (0xC001_0071, 0),
    (0xC001_02B0, 0xA664_280F),
    (0xC001_02B1, 1),
    (CPPC_REQUEST, 0x8000_0FA6),
];

struct Machine {
    directory: TempDir,
    root: Root,
    name: &'static str,
}

impl Machine {
    fn new(cpuid: &str, registers: &[(u64, u64)], name: &'static str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let machine = Self { root: Root::new(directory.path()), directory, name };
        machine.put("/cpuid.txt", cpuid);
        for name in ["present", "online"] {
            machine.put(&format!("/sys/devices/system/cpu/{name}"), "0-1\n");
        }
        for cpu in 0..2 {
            machine.put(&format!("/dev/cpu/{cpu}/{name}"), "");
            registers.iter().for_each(|(register, value)| machine.set(cpu, *register, *value));
        }
        machine
    }

    fn put(&self, path: &str, content: &str) {
        let path = self.root.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn registers(&self, cpu: u32) -> File {
        let path = self.root.path(&format!("/dev/cpu/{cpu}/{}", self.name));
        File::options().read(true).write(true).open(path).unwrap()
    }

    fn set(&self, cpu: u32, register: u64, value: u64) {
        self.registers(cpu).write_all_at(&value.to_le_bytes(), 8 * register).unwrap();
    }

    fn get(&self, cpu: u32, register: u64) -> u64 {
        let mut bytes = [0; 8];
        self.registers(cpu).read_exact_at(&mut bytes, 8 * register).unwrap();
        u64::from_le_bytes(bytes)
    }
}

fn on(cpu: u32) -> Thread {
    Thread { id: 7, cpu: CpuId::new(cpu) }
}

#[track_caller]
fn check_requests(machine: &Machine, register: u64, levels: [u64; 4], fastest_mhz: u64) {
    let before = machine.get(1, register);
    let back_end = open(&machine.root).unwrap();
    let wanted = [Request::SLOW, Request::BASE, Request::TURBO, Request::percent(50).unwrap()];
    for (request, level) in wanted.into_iter().zip(levels) {
        back_end.request(on(1), Some(request)).unwrap();
        let expected = before & !0xFF_FFFF | level << 8 | level;
        assert_eq!(machine.get(1, register), expected, "{request:?}");
    }
    let fastest = back_end.clocks(CpuId::new(1)).unwrap().fastest;
    assert_eq!(fastest, KiloHertz::from_mhz(fastest_mhz));
    // The thread moves: the core that it leaves has what it had.
    back_end.request(on(0), Some(Request::SLOW)).unwrap();
    assert_eq!(machine.get(1, register), before);
    back_end.end().unwrap();
    assert_eq!([machine.get(0, register), machine.get(1, register)], [before; 2]);
}

#[test]
fn both_limits_are_the_level_and_the_preference_stays() {
    let intel = Machine::new(INTEL, OF_INTEL, "msr");
    check_requests(&intel, HWP_REQUEST, [8, 34, 42, 21], 4200);
    let amd = Machine::new(AMD, OF_AMD, "msr");
    check_requests(&amd, CPPC_REQUEST, [15, 100, 166, 83], 5976);
}

/// The files of `msr-safe`, where those of `msr` cannot be read.
#[test]
fn the_allow_list_of_msr_safe_does_as_well() {
    let intel = Machine::new(INTEL, OF_INTEL, "msr_safe");
    check_requests(&intel, HWP_REQUEST, [8, 34, 42, 21], 4200);
    let back_end = open(&intel.root).unwrap();
    back_end.request(on(0), Some(Request::SLOW)).unwrap();
    // A second process finds the first one's journal.
    let second = open(&intel.root).unwrap();
    let lost = second.request(on(0), Some(Request::TURBO));
    assert!(matches!(lost, Err(Refused::Lost(_))), "{lost:?}");
}

#[test]
fn a_request_of_another_program_is_left() {
    let machine = Machine::new(AMD, OF_AMD, "msr");
    let back_end = open(&machine.root).unwrap();
    back_end.request(on(1), Some(Request::SLOW)).unwrap();
    machine.set(1, CPPC_REQUEST, 0x3232);
    match back_end.request(on(1), Some(Request::TURBO)) {
        Err(Refused::Lost(lost)) => {
            assert_eq!(lost.why, "CPU 1 requested 0x80000f0f and now requests 0x3232");
        }
        other => panic!("not lost: {other:?}"),
    }
    back_end.end().unwrap();
    assert_eq!(machine.get(1, CPPC_REQUEST), 0x3232);
}

#[test]
fn a_process_that_was_killed_is_undone_by_the_next_start() {
    let machine = Machine::new(INTEL, OF_INTEL, "msr");
    let back_end = open(&machine.root).unwrap();
    back_end.request(on(1), Some(Request::TURBO)).unwrap();
    // What is left of a process that was killed: its journal, which no process has open.
    let journal = |root: &Root| {
        let names = root.list("/run/dimmer").unwrap();
        names.into_iter().find(|name| name.starts_with("journal.")).unwrap()
    };
    let left = machine.root.text(&format!("/run/dimmer/{}", journal(&machine.root))).unwrap();
    back_end.end().unwrap();
    machine.set(1, HWP_REQUEST, 0x8000_2A2A);
    machine.put("/run/dimmer/journal.1.99", &format!("{left}\n"));
    drop(open(&machine.root).unwrap());
    assert_eq!(machine.get(1, HWP_REQUEST), 0x8000_2A08);
}

#[test]
fn levels_that_a_cpu_does_not_have_are_refused() {
    let machine = Machine::new(INTEL, OF_INTEL, "msr");
    let (mut journal, _) = Journal::open(&machine.root).unwrap();
    let cpuid = Cpuid::of(&machine.root).unwrap();
    let levels = check(&machine.root, &cpuid).unwrap()[0];
    for level in [0, 7, 43, 255] {
        match levels.request(&mut journal, level) {
            Err(SetError::Unavailable(missing)) => {
                let says = format!("CPU 0 has the levels 8 to 42, and not {level}");
                assert_eq!(missing.why, says);
            }
            other => panic!("not refused: {other:?}"),
        }
    }
    assert_eq!(machine.get(0, HWP_REQUEST), 0x8000_2A08);
}

#[track_caller]
fn check_missing(machine: &Machine, why: &str) {
    let missing = open(&machine.root).unwrap_err();
    assert_eq!(missing.why, why);
    assert!(!missing.remedy.is_empty());
    assert!(!machine.directory.path().join("run").exists(), "nothing was written");
}

#[test]
fn says_what_is_missing_or_in_the_way() {
    let with = |register, value| {
        let machine = Machine::new(INTEL, OF_INTEL, "msr");
        machine.set(1, register, value);
        machine
    };
    check_missing(&with(0x770, 0), "CPU 1 has HWP switched off");
    let package = with(HWP_REQUEST, 1 << 42);
    check_missing(&package, "the request of the package counts for CPU 1, and not its own");
    let empty = with(0x771, 0);
    check_missing(&empty, "CPU 1 has the levels 0 (lowest), 0 (base), 0 (highest)");
    let driver = with(0x770, 1);
    driver.put("/sys/devices/system/cpu/cpufreq/policy0/scaling_driver", "intel_pstate\n");
    check_missing(&driver, "the driver intel_pstate requests levels itself");
    let none = Machine::new(&INTEL.replace("eax=0x00000080", "eax=0x00000000"), OF_INTEL, "msr");
    check_missing(&none, "the processor has neither HWP nor CPPC");
    let read_only = with(0x770, 1);
    let path = read_only.root.path("/dev/cpu/1/msr");
    fs::set_permissions(path, fs::Permissions::from_mode(0o444)).unwrap();
    check_missing(&read_only, "no permission to write /dev/cpu/1/msr");
    let off = Machine::new(AMD, OF_AMD, "msr");
    off.set(0, 0xC001_02B1, 0);
    check_missing(&off, "CPU 0 has CPPC switched off");
}

/// Levels 8 to 42; the register's lowest byte is the minimum, the next one the maximum, the third
/// the desired level.
#[test]
fn a_clock_that_is_wanted_at_least_lowers_no_level() {
    #[track_caller]
    fn check(before: u64, request: Request, after: u64) {
        let machine = Machine::new(INTEL, OF_INTEL, "msr");
        machine.set(1, HWP_REQUEST, before);
        let cores = open(&machine.root).expect("a back end");
        assert_eq!(cores.at_least_for(on(1), request), Ok(()));
        assert_eq!(machine.get(1, HWP_REQUEST), after, "{after:#x}");
        assert_eq!(cores.request_for(on(1), None), Ok(()));
        assert_eq!(machine.get(1, HWP_REQUEST), before);
    }
    check(0x8000_2A08, Request::TURBO, 0x8000_2A2A);
    check(0x8000_2A08, Request::BASE, 0x8000_2A22);
    check(0x8000_1408, Request::BASE, 0x8000_2222);
    check(0x8000_2A28, Request::SLOW, 0x8000_2A28);
    check(0x8014_2A08, Request::BASE, 0x8022_2A22);
}
