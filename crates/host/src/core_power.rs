//! Intel Speed Select core power (SST-CP): four classes of service in each power domain, each with
//! limits of the clock, and a class for each core. When power is short, it goes to the cores of
//! the class that comes first.
//!
//! Through `/dev/isst_interface`, by the calls of processors with TPMI alone; those of processors
//! before it, a mailbox, are not used. Changes go through the journal
//! ([`crate::journal::Journal::change_core_power`]).
//!
//! Sources: Linux `Documentation/admin-guide/pm/intel-speed-select.rst`,
//! `include/uapi/linux/isst_if.h`, `drivers/platform/x86/intel/speed_select_if`.

mod interface;
mod made_up;

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use dimmer_processor::units::{CpuId, KiloHertz};

use self::interface::Interface;
use crate::journal::{self, Pending};
use crate::root::{Root, RootError};
use crate::topology;
use crate::unavailable::Unavailable;

/// The kernel's file.
pub const DEVICE: &str = "/dev/isst_interface";

/// The noun in refusals.
const WHAT: &str = "Intel Speed Select core power";

/// The first version of the calls that has those for TPMI (`ISST_TPMI_API_VERSION`).
const TPMI: u16 = 2;

/// The number of classes in a power domain.
pub const CLASSES: u8 = 4;

/// A part of a package that has classes of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DomainId {
    /// The package.
    pub package: u8,
    /// The number within the package.
    pub domain: u8,
}

impl fmt::Display for DomainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "package {} domain {}", self.package, self.domain)
    }
}

/// One of the values that can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Whether a domain has core power on, and how its classes are ordered: [`State::word`].
    State(DomainId),
    /// What a class means: [`Class::word`].
    Class(DomainId, u8),
    /// The class of a core, which has this number in its domain.
    Core(DomainId, u8),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State(domain) => write!(f, "{domain} state"),
            Self::Class(domain, class) => write!(f, "{domain} class {class}"),
            Self::Core(domain, core) => write!(f, "{domain} core {core}"),
        }
    }
}

impl Place {
    /// The place of this name, if it is one.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let words: Vec<&str> = name.split(' ').collect();
        let ["package", package, "domain", domain, kind, rest @ ..] = words.as_slice() else {
            return None;
        };
        let domain = DomainId { package: package.parse().ok()?, domain: domain.parse().ok()? };
        let place = match (*kind, rest) {
            ("state", []) => Self::State(domain),
            ("class", [class]) => Self::Class(domain, class.parse().ok()?),
            ("core", [core]) => Self::Core(domain, core.parse().ok()?),
            _ => return None,
        };
        // One name for each place.
        (place.to_string() == name).then_some(place)
    }

    /// The place as journals name it ([`crate::journal::Pending::paths`]).
    #[must_use]
    pub fn name(self) -> String {
        format!("{DEVICE} {self}")
    }
}

/// Whether a domain has core power on, and how its classes are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Whether classes have an effect.
    pub is_on: bool,
    /// Whether a class comes before all with a higher number. Otherwise their weights count.
    pub is_ordered: bool,
}

impl State {
    /// Bit 0: on; bit 1: ordered, as in the register.
    #[must_use]
    pub const fn word(self) -> u64 {
        self.is_on as u64 | (self.is_ordered as u64) << 1
    }

    const fn of_word(word: u64) -> Self {
        Self { is_on: word & 1 == 1, is_ordered: word & 2 == 2 }
    }
}

/// What a class means for its cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// 0 to 15, where classes are not ordered; 0 gets the most.
    pub weight: u8,
    /// The clock that each core gets before the rest of the power is distributed (100 MHz).
    pub min: u8,
    /// The fastest clock (100 MHz); [`Class::ANY`]: no limit.
    pub max: u8,
}

impl Class {
    /// No limit.
    pub const ANY: u8 = u8::MAX;

    /// Bits 7:4: weight; 15:8: least clock; 23:16: highest clock, as in the register.
    #[must_use]
    pub const fn word(self) -> u64 {
        (self.weight as u64) << 4 | (self.min as u64) << 8 | (self.max as u64) << 16
    }

    fn of_word(word: u64) -> Self {
        let byte = |shift: u32, mask: u64| u8::try_from(word >> shift & mask).unwrap_or(0);
        Self { weight: byte(4, 0xF), min: byte(8, 0xFF), max: byte(16, 0xFF) }
    }

    /// The number of a clock in units of 100 MHz, those that are between rounded up.
    #[must_use]
    pub fn ratio(clock: KiloHertz) -> u8 {
        u8::try_from(clock.khz().div_ceil(100_000)).unwrap_or(Self::ANY)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { weight, min, max } = self;
        let mhz = |ratio: &u8| u32::from(*ratio) * 100;
        match (*min, *max) {
            (0, Self::ANY) => write!(f, "weight {weight}, any clock"),
            (_, Self::ANY) => write!(f, "weight {weight}, at least {} MHz", mhz(min)),
            (0, _) => write!(f, "weight {weight}, at most {} MHz", mhz(max)),
            _ => write!(f, "weight {weight}, {} to {} MHz", mhz(min), mhz(max)),
        }
    }
}

/// A core and its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// Its number in the domain.
    pub number: u8,
    /// Its CPUs that are online, ascending.
    pub cpus: Vec<CpuId>,
    /// Its class.
    pub class: u8,
}

/// A power domain with its classes and cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Which it is.
    pub id: DomainId,
    /// Whether it has core power on.
    pub state: State,
    /// Its classes, by number.
    pub classes: [Class; CLASSES as usize],
    /// Its cores that are online, ascending.
    pub cores: Vec<Core>,
}

impl Domain {
    /// In words: whether it is on, and if so, what its classes mean and how many cores each has.
    #[must_use]
    pub fn describe(&self) -> String {
        let Self { id, state, classes, cores } = self;
        if !state.is_on {
            return format!("{id}: off, {} cores", cores.len());
        }
        let order = if state.is_ordered { "ordered" } else { "by weight" };
        let of = |number: u8| cores.iter().filter(|core| core.class == number).count();
        let class = |(number, class): (u8, &Class)| {
            format!("class {number} ({class}): {} of {} cores", of(number), cores.len())
        };
        let classes: Vec<String> = (0..).zip(classes).map(class).collect();
        format!("{id}: on, {order}, {}", classes.join(", "))
    }
}

/// Checks that requests may use these domains: all are off, and this process may change them, as
/// far as that shows before it does.
///
/// # Errors
/// [`Unavailable`].
pub fn check(root: &Root, domains: &[Domain]) -> Result<(), Unavailable> {
    if !root.is_writable(DEVICE) {
        let why = format!("no permission to write {DEVICE}");
        return Err(Unavailable::new(WHAT, why, "run as root"));
    }
    let Some(on) = domains.iter().find(|domain| domain.state.is_on) else { return Ok(()) };
    let by_dimmer = |one: Pending| {
        let path = one.paths.iter().find(|path| path.starts_with(DEVICE))?;
        let why = format!("process {} has changed {path} and not yet restored it", one.process);
        Some(Unavailable::new(WHAT, why, "wait for its end, or as root: dimmer restore"))
    };
    let by_others = || {
        let why = format!("{} has it on already, by the firmware or another program", on.id);
        Unavailable::new(WHAT, why, "as root: intel-speed-select core-power disable")
    };
    Err(journal::pending(root).into_iter().find_map(by_dimmer).unwrap_or_else(by_others))
}

/// Reads all power domains of the machine under `root`. Changes nothing.
///
/// # Errors
/// [`Unavailable`]: no interface, no permission, a kernel or a processor that has it in another
/// way or not at all.
///
/// # Cost
/// Two calls for each CPU that is online, and some for each domain.
pub fn read(root: &Root) -> Result<Vec<Domain>, Unavailable> {
    let interface = open(root)?;
    let online = topology::online(root)
        .map_err(|error| Unavailable::new(WHAT, error.to_string(), "mount /proc and /sys"))?;
    let mut domains: BTreeMap<DomainId, BTreeMap<u8, Vec<CpuId>>> = BTreeMap::new();
    for cpu in online {
        let (id, core) = place_of(root, &*interface, cpu)?;
        domains.entry(id).or_default().entry(core).or_default().push(cpu);
    }
    domains.into_iter().map(|(id, cores)| domain(&*interface, id, cores)).collect()
}

/// The interface, if it has the calls for TPMI.
fn open(root: &Root) -> Result<Box<dyn Interface>, Unavailable> {
    let missing = |why: String, remedy: &str| Unavailable::new(WHAT, why, remedy);
    if !root.exists(DEVICE) {
        let remedy = "on a processor with it, as root: modprobe isst_if_common";
        return Err(missing(format!("no {DEVICE}"), remedy));
    }
    let interface = interface::open(root, false)
        .map_err(|error| missing(format!("{DEVICE}: {error}"), "run as root"))?;
    let version = interface.version().map_err(|error| refused("its version", &error))?;
    if version < TPMI {
        let why = format!(
            "{DEVICE} has version {version} of the calls, a mailbox, as processors before TPMI have \
             it; Dimmer uses version {TPMI} and later alone"
        );
        return Err(missing(why, "use intel-speed-select of the kernel's tools"));
    }
    Ok(interface)
}

/// The domain of a CPU, and the number of its core there.
fn place_of(
    root: &Root,
    interface: &dyn Interface,
    cpu: CpuId,
) -> Result<(DomainId, u8), Unavailable> {
    let file = format!("{}/cpu{cpu}/topology/physical_package_id", topology::CPUS);
    let package = root.integer(&file).ok().and_then(|package| u8::try_from(package).ok());
    let unknown = |what: &str| {
        let why = format!("the kernel does not report the {what} of CPU {cpu}");
        Unavailable::new(WHAT, why, "use another kernel")
    };
    let package = package.ok_or_else(|| unknown("package"))?;
    let physical = interface.physical(cpu);
    let physical = physical.map_err(|error| refused(&format!("the place of CPU {cpu}"), &error))?;
    // MSR_PM_LOGICAL_ID, as intel-speed-select reads it with TPMI: bits 15:11 the power domain,
    // 10:3 the core (or module) in it. All bits set: the kernel does not know.
    if physical == u32::MAX {
        return Err(unknown("power domain"));
    }
    let bits = |shift: u32, mask: u32| u8::try_from(physical >> shift & mask).unwrap_or(0);
    Ok((DomainId { package, domain: bits(11, 0x1F) }, bits(3, 0xFF)))
}

fn domain(
    interface: &dyn Interface,
    id: DomainId,
    cores: BTreeMap<u8, Vec<CpuId>>,
) -> Result<Domain, Unavailable> {
    if !interface.is_supported(id).map_err(|error| refused(&id.to_string(), &error))? {
        let why = format!("the processor has no core power in {id}");
        return Err(Unavailable::new(WHAT, why, "use a processor with it"));
    }
    let word =
        |place: Place| interface.read(place).map_err(|error| refused(&place.to_string(), &error));
    let mut classes = [Class::of_word(0); CLASSES as usize];
    for (class, number) in classes.iter_mut().zip(0..) {
        *class = Class::of_word(word(Place::Class(id, number))?);
    }
    let core = |(number, cpus)| {
        let class = u8::try_from(word(Place::Core(id, number))?).unwrap_or(u8::MAX);
        Ok(Core { number, cpus, class })
    };
    let state = State::of_word(word(Place::State(id))?);
    Ok(Domain { id, state, classes, cores: cores.into_iter().map(core).collect::<Result<_, _>>()? })
}

/// Why a call was refused.
fn refused(what: &str, error: &io::Error) -> Unavailable {
    let why = format!("{DEVICE} does not answer for {what}: {error}");
    let remedy = match error.raw_os_error() {
        Some(libc::ENOTTY) => "use a kernel with isst_tpmi, Linux 6.4 or later",
        // `disable_dynamic_sst_features`: the kernel has this answer for it.
        Some(libc::EFAULT) => "switch HWP on: without it the kernel refuses",
        Some(libc::EPERM | libc::EACCES) => "run as root",
        _ => "use a processor with it, and as root: modprobe isst_tpmi",
    };
    Unavailable::new(WHAT, why, remedy)
}

/// What a place holds now.
///
/// # Errors
/// [`RootError::Read`].
pub fn held(root: &Root, place: Place) -> Result<u64, RootError> {
    interface::open(root, false)
        .and_then(|interface| interface.read(place))
        .map_err(|source| root.read_error(DEVICE, source))
}

/// Changes what a place holds. [`crate::journal::Journal::change_core_power`] puts it on record
/// first.
///
/// # Errors
/// [`RootError::Write`].
pub(crate) fn write(root: &Root, place: Place, word: u64) -> Result<(), RootError> {
    interface::open(root, true)
        .and_then(|interface| interface.write(place, word))
        .map_err(|source| root.write_error(DEVICE, source))
}

#[cfg(test)]
mod tests;
