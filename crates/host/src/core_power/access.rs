//! One access to power domains, whichever calls the processor has: those for TPMI, or a mailbox and
//! registers (MMIO) before it.
//!
//! The meaning of the latter: Linux `tools/power/x86/intel-speed-select/isst-core-mbox.c` and
//! `isst-core.c`.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use dimmer_processor::units::CpuId;

use super::interface::{self, Interface};
use super::{DomainId, Place, State};
use crate::root::Root;
use crate::topology;

/// The first version of the calls that has those for TPMI (`ISST_TPMI_API_VERSION`).
const TPMI: u16 = 2;

/// `READ_PM_CONFIG`: bit 0: the processor has core power; bit 16: the feature is on.
const READ_FEATURES: u16 = 0x94;
/// `WRITE_PM_CONFIG`, of which bit 16 counts.
const WRITE_FEATURES: u16 = 0x95;
/// `PM_FEATURE`.
const FEATURE: u16 = 3;
const FEATURE_ON: u32 = 1 << 16;
/// `CONFIG_CLOS` and `CLOS_PM_QOS_CONFIG`: bit 1: classes are on; bit 2: they are ordered.
const CLASSES: u16 = 0xD0;
const STATE: u16 = 2;
/// `MBOX_CMD_WRITE_BIT`.
const WRITE: u32 = 1 << 8;

/// `PM_CLOS_OFFSET`: a register for each class, with the word of [`super::Class::word`] in bits
/// 23:4. Others keep what they hold.
const CLASS_REGISTERS: u32 = 0x08;
const CLASS_MASK: u32 = 0xFF_FFF0;
/// `PQR_ASSOC_OFFSET`: a register for each core, with its class in bits 17:16.
const CORE_REGISTERS: u32 = 0x20;
const CORE_SHIFT: u32 = 16;
const CORE_MASK: u32 = 3 << CORE_SHIFT;

/// How often a call is made if the processor is busy. The kernel's tool repeats it three
/// times (`mbox_retries` in `isst-core-mbox.c`).
const TRIES: u32 = 4;
/// The time between two tries, if the processor is busy: its mailbox may take as long
/// (`OS_MAILBOX_TIMEOUT_MAX_US` in `isst_if_mbox_pci.c`).
const BETWEEN_TRIES: Duration = Duration::from_millis(1);
/// The number of signals in sequence after which a call fails. A guess.
const SIGNALS: u32 = 100;

/// Makes a call, several times if the processor is busy or a signal interrupts it.
fn patiently<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let (mut tries, mut signals) = (1, 0);
    loop {
        match call() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && tries < TRIES => {
                tries += 1;
                std::thread::sleep(BETWEEN_TRIES);
            }
            Err(error) if error.raw_os_error() == Some(libc::EINTR) && signals < SIGNALS => {
                signals += 1;
            }
            result => return result,
        }
    }
}

/// The calls of a machine.
pub(super) struct Access<'a> {
    root: &'a Root,
    calls: Box<dyn Interface>,
    is_tpmi: bool,
    /// The CPU that was found last, and its domain.
    cpu: Cell<Option<(DomainId, CpuId)>>,
}

impl<'a> Access<'a> {
    /// Opens the interface. Before TPMI both the mailbox and the registers must be there.
    pub(super) fn open(root: &'a Root, for_writing: bool) -> io::Result<Self> {
        let calls = interface::open(root, for_writing)?;
        let platform = patiently(|| calls.platform())?;
        let is_tpmi = platform.version >= TPMI;
        let missing = match (platform.has_mailbox, platform.has_registers) {
            _ if is_tpmi => None,
            (true, true) => None,
            (false, true) => Some("it has no TPMI and no mailbox"),
            (true, false) => Some("it has no TPMI and no registers"),
            (false, false) => Some("it has no TPMI, no mailbox and no registers"),
        };
        if let Some(why) = missing {
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        Ok(Self { root, calls, is_tpmi, cpu: Cell::new(None) })
    }

    /// The domain of a CPU, and the number of its core there; `None`: the kernel does not report
    /// them.
    pub(super) fn place_of(&self, cpu: CpuId) -> io::Result<Option<(DomainId, u8)>> {
        let number = |file: &str| {
            let path = format!("{}/cpu{cpu}/topology/{file}", topology::CPUS);
            self.root.integer(&path).ok().and_then(|number| u8::try_from(number).ok())
        };
        let physical = patiently(|| self.calls.physical(cpu))?;
        let (Some(package), true) = (number("physical_package_id"), physical != u32::MAX) else {
            return Ok(None);
        };
        let bits = |shift: u32, mask: u32| u8::try_from(physical >> shift & mask).unwrap_or(0);
        // With TPMI this is MSR_PM_LOGICAL_ID: bits 15:11 the power domain, 10:3 the core (or
        // module) in it. Before, MSR_THREAD_ID_INFO: bits 8:1 the core; each die is a domain.
        let (domain, core) = if self.is_tpmi {
            (bits(11, 0x1F), bits(3, 0xFF))
        } else {
            (number("die_id").unwrap_or(0), bits(1, 0xFF))
        };
        Ok(Some((DomainId { package, domain }, core)))
    }

    /// A CPU of a domain: before TPMI, calls are for the domain of a CPU.
    fn cpu_of(&self, domain: DomainId) -> io::Result<CpuId> {
        if let Some((_, cpu)) = self.cpu.get().filter(|(known, _)| *known == domain) {
            return Ok(cpu);
        }
        for cpu in self.online()? {
            if self.place_of(cpu)?.is_some_and(|(found, _)| found == domain) {
                self.cpu.set(Some((domain, cpu)));
                return Ok(cpu);
            }
        }
        let why = format!("no CPU of {domain} is online");
        Err(io::Error::new(io::ErrorKind::NotFound, why))
    }

    /// The CPUs that are online. Those that this process may run on do not stand for them: others
    /// have classes, too.
    pub(super) fn online(&self) -> io::Result<Vec<CpuId>> {
        let path = format!("{}/online", topology::CPUS);
        self.root.cpu_list(&path).map_err(io::Error::other)
    }

    /// Whether a domain has core power.
    pub(super) fn is_supported(&self, domain: DomainId) -> io::Result<bool> {
        if self.is_tpmi {
            return patiently(|| self.calls.is_supported(domain));
        }
        let cpu = self.cpu_of(domain)?;
        Ok(patiently(|| self.calls.mailbox(cpu, [READ_FEATURES, FEATURE], 0, 0))? & 1 == 1)
    }

    /// Whether domains have [`Place::Feature`].
    pub(super) const fn has_feature(&self) -> bool {
        !self.is_tpmi
    }

    /// What a place holds.
    pub(super) fn read(&self, place: Place) -> io::Result<u64> {
        if self.is_tpmi {
            return patiently(|| self.calls.read(place));
        }
        let cpu = self.cpu_of(place.domain())?;
        patiently(|| self.read_by(cpu, place))
    }

    /// Before TPMI.
    fn read_by(&self, cpu: CpuId, place: Place) -> io::Result<u64> {
        Ok(match place {
            Place::Feature(_) => {
                let features = self.calls.mailbox(cpu, [READ_FEATURES, FEATURE], 0, 0)?;
                u64::from(features & FEATURE_ON != 0)
            }
            Place::State(_) => {
                let word = self.calls.mailbox(cpu, [CLASSES, STATE], 0, 0)?;
                State { is_on: word & 2 != 0, is_ordered: word & 4 != 0 }.word()
            }
            Place::Class(_, class) => {
                (self.calls.register(cpu, class_register(class), None)? & CLASS_MASK).into()
            }
            Place::Core(_, core) => {
                let word = self.calls.register(cpu, core_register(core), None)?;
                ((word & CORE_MASK) >> CORE_SHIFT).into()
            }
        })
    }

    /// Changes what a place holds.
    pub(super) fn write(&self, place: Place, word: u64) -> io::Result<()> {
        if self.is_tpmi {
            return patiently(|| self.calls.write(place, word));
        }
        let cpu = self.cpu_of(place.domain())?;
        let word = u32::try_from(word).map_err(|_| io::ErrorKind::InvalidInput)?;
        patiently(|| self.write_by(cpu, place, word)).map(|_| ())
    }

    /// Before TPMI.
    fn write_by(&self, cpu: CpuId, place: Place, word: u32) -> io::Result<u32> {
        let in_register = |register, mask: u32, bits: u32| {
            let before = self.calls.register(cpu, register, None)?;
            self.calls.register(cpu, register, Some(before & !mask | bits & mask))
        };
        match place {
            Place::Feature(_) => {
                let features = if word == 0 { 0 } else { FEATURE_ON };
                self.calls.mailbox(cpu, [WRITE_FEATURES, FEATURE], 0, features)
            }
            Place::State(_) => {
                let before = self.calls.mailbox(cpu, [CLASSES, STATE], 0, 0)?;
                self.calls.mailbox(cpu, [CLASSES, STATE], WRITE, before & !6 | word << 1)
            }
            Place::Class(_, class) => in_register(class_register(class), CLASS_MASK, word),
            Place::Core(_, core) => in_register(core_register(core), CORE_MASK, word << CORE_SHIFT),
        }
    }
}

fn class_register(class: u8) -> u32 {
    CLASS_REGISTERS + 4 * u32::from(class)
}

fn core_register(core: u8) -> u32 {
    CORE_REGISTERS + 4 * u32::from(core)
}
