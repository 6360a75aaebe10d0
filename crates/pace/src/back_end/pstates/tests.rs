//! Requests on a made-up i7-4770 (paper 002, table 3) without a driver for cpufreq.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use tempfile::TempDir;

use super::*;
use crate::Request;
use crate::back_end::{BackEnd as _, Refused, Thread};

const CONTROL: u64 = 0x199;
const STATUS: u64 = 0x198;

const CPUID: &str = "\
0x00000000 0x00: eax=0x00000006 ebx=0x756e6547 ecx=0x6c65746e edx=0x49656e69
0x00000001 0x00: eax=0x000306c3 ebx=0x00000000 ecx=0x00000000 edx=0x00000000
";

struct Machine {
    _directory: TempDir,
    root: Root,
}

impl Machine {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let machine = Self { root: Root::new(directory.path()), _directory: directory };
        machine.put("/cpuid.txt", CPUID);
        for name in ["present", "online"] {
            machine.put(&format!("/sys/devices/system/cpu/{name}"), "0-1\n");
        }
        for cpu in 0..2 {
            machine.put(&format!("/dev/cpu/{cpu}/msr"), "");
            for (register, value) in [
                (0xCE, 0x8_0838_f301_2200),
                (STATUS, 39 << 8),
                (CONTROL, 1 << 32 | 34 << 8),
                (0x1AD, 0x2526_2727),
                (0x770, 0),
            ] {
                machine.set(cpu, register, value);
            }
        }
        machine
    }

    fn put(&self, path: &str, content: &str) {
        let path = self.root.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn registers(&self, cpu: u32) -> File {
        let path = self.root.path(&format!("/dev/cpu/{cpu}/msr"));
        File::options().read(true).write(true).open(path).unwrap()
    }

    fn set(&self, cpu: u32, register: u64, value: u64) {
        self.registers(cpu).write_all_at(&value.to_le_bytes(), 8 * register).unwrap();
    }

    /// The register for requests.
    fn control(&self, cpu: u32) -> u64 {
        let mut bytes = [0; 8];
        self.registers(cpu).read_exact_at(&mut bytes, 8 * CONTROL).unwrap();
        u64::from_le_bytes(bytes)
    }
}

const BEFORE: u64 = 1 << 32 | 34 << 8;

fn on(cpu: u32) -> Thread {
    Thread { id: 7, cpu: CpuId::new(cpu) }
}

#[test]
fn a_request_is_the_slowest_state_that_is_fast_enough() {
    let machine = Machine::new();
    let back_end = open(&machine.root).unwrap();
    for (request, ratio) in [
        (Some(Request::TURBO), 39),
        (Some(Request::BASE), 34),
        (Some(Request::SLOW), 8),
        (Request::percent(50), 20),
        (Request::percent(100), 39),
    ] {
        back_end.request(on(1), request).unwrap();
        assert_eq!(machine.control(1), 1 << 32 | ratio << 8, "{request:?}");
    }
    back_end.request(on(0), Some(Request::SLOW)).unwrap();
    assert_eq!((machine.control(1), machine.control(0)), (BEFORE, 1 << 32 | 8 << 8));
    assert_eq!(back_end.clock(CpuId::new(0)), Some(KiloHertz::from_mhz(3900)));
    back_end.end().unwrap();
    assert_eq!((machine.control(1), machine.control(0)), (BEFORE, BEFORE));
}

#[test]
fn a_register_that_others_write_is_theirs() {
    let machine = Machine::new();
    let back_end = open(&machine.root).unwrap();
    back_end.request(on(1), Some(Request::SLOW)).unwrap();
    machine.set(1, CONTROL, 20 << 8);
    match back_end.request(on(1), Some(Request::TURBO)) {
        Err(Refused::Lost(lost)) => {
            assert_eq!(lost.why, "CPU 1 requested P8 and now requests P20");
        }
        other => panic!("not lost: {other:?}"),
    }
    back_end.end().unwrap();
    assert_eq!(machine.control(1), 20 << 8);
}

#[test]
fn a_request_follows_its_thread_to_another_cpu() {
    let machine = Machine::new();
    let back_end = open(&machine.root).unwrap();
    assert_eq!(back_end.is_for(on(0)), None);
    back_end.follow(on(1)).unwrap();
    back_end.request(on(0), Some(Request::SLOW)).unwrap();
    assert_eq!([0, 1].map(|cpu| back_end.is_for(on(cpu))), [Some(true), Some(false)]);
    let slow = machine.control(0);
    assert_ne!(slow, BEFORE);
    back_end.follow(on(1)).unwrap();
    assert_eq!([0, 1].map(|cpu| machine.control(cpu)), [BEFORE, slow]);
    back_end.request(on(1), None).unwrap();
    assert_eq!(machine.control(1), BEFORE);
    // To a CPU that there is not, it cannot follow.
    back_end.request(on(0), Some(Request::SLOW)).unwrap();
    back_end.follow(on(9)).unwrap();
    assert_eq!((machine.control(0), back_end.is_for(on(9))), (BEFORE, None));
}

/// As when the module `msr` is unloaded.
#[test]
fn registers_that_vanish_are_reported_and_the_other_cpu_goes_on() {
    let machine = Machine::new();
    let back_end = open(&machine.root).unwrap();
    back_end.request(on(0), Some(Request::SLOW)).unwrap();
    fs::remove_file(machine.root.path("/dev/cpu/1/msr")).unwrap();
    match back_end.request(on(1), Some(Request::SLOW)) {
        Err(Refused::Lost(lost)) => assert!(lost.why.contains("/dev/cpu/1/msr"), "{lost}"),
        other => panic!("not lost: {other:?}"),
    }
    assert_eq!(machine.control(0), BEFORE, "the thread has moved, so its request is gone");
    back_end.request(on(0), Some(Request::TURBO)).unwrap();
    assert_ne!(machine.control(0), BEFORE);
    back_end.end().unwrap();
    assert_eq!(machine.control(0), BEFORE);
}

#[test]
fn a_driver_of_the_kernel_is_in_the_way() {
    let machine = Machine::new();
    machine.put("/sys/devices/system/cpu/cpufreq/policy0/scaling_driver", "acpi-cpufreq\n");
    let missing = open(&machine.root).unwrap_err();
    assert_eq!(missing.why, "the driver acpi-cpufreq requests P-states itself");
}

/// As `dimmer pstate set --keep` leaves a P-state, or another process a register.
#[test]
fn leaves_alone_whose_request_is_on_record_and_no_other() {
    let machine = Machine::new();
    let change = |cpu, register: u64, value| {
        let (mut journal, _) = Journal::open(&machine.root).unwrap();
        let path = msr::path(&machine.root, CpuId::new(cpu));
        journal.change_register(&path, u32::try_from(register).unwrap(), value).unwrap();
        journal
    };
    change(0, CONTROL, 1 << 32 | 20 << 8).keep().unwrap();
    let _other = change(1, STATUS, 30 << 8);
    let back_end = open(&machine.root).unwrap();
    match back_end.request(on(0), Some(Request::SLOW)) {
        Err(Refused::Lost(lost)) => {
            assert!(lost.why.ends_with("to be kept; `dimmer restore` undoes it"), "{lost}");
            assert!(lost.remedy.contains("dimmer restore"), "{lost}");
        }
        other => panic!("not lost: {other:?}"),
    }
    assert_eq!(machine.control(0), 1 << 32 | 20 << 8);
    back_end.request(Thread { id: 8, ..on(1) }, Some(Request::SLOW)).unwrap();
    assert_eq!(machine.control(1), 1 << 32 | 8 << 8);
}

#[test]
fn a_clock_that_is_wanted_at_least_is_no_slower_state() {
    let machine = Machine::new();
    let cores = open(&machine.root).expect("a back end");
    let before = machine.control(1);
    assert_eq!(cores.at_least_for(on(1), Request::SLOW), Ok(()));
    assert_eq!(machine.control(1), before);
    assert_eq!(cores.request_for(on(1), Some(Request::SLOW)), Ok(()));
    assert_ne!(machine.control(1), before);
    assert_eq!(cores.at_least_for(on(1), Request::SLOW), Ok(()));
    assert_eq!(machine.control(1), before);
}
