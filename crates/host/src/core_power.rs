//! Intel Speed Select core power (SST-CP): four classes of service in each power domain, each with
//! limits of the clock, and a class for each core. When power is short, it goes to the cores of
//! the class that comes first.
//!
//! Through `/dev/isst_interface`, by the calls for processors with TPMI, or by a mailbox and
//! registers before it. Changes go through the journal
//! ([`crate::journal::Journal::change_core_power`]).
//!
//! Sources: Linux `Documentation/admin-guide/pm/intel-speed-select.rst`,
//! `include/uapi/linux/isst_if.h`, `drivers/platform/x86/intel/speed_select_if`.

mod access;
mod interface;
mod made_up;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::time::Duration;

use dimmer_processor::units::{CpuId, KiloHertz};

use self::access::Access;
use crate::journal::{self, JournalError, Owner, Pending};
use crate::root::{Root, RootError};
use crate::unavailable::Unavailable;

/// The kernel's file.
pub const DEVICE: &str = "/dev/isst_interface";

/// The noun in refusals.
const WHAT: &str = "Intel Speed Select core power";

/// What puts in order what a process of Dimmer's has left.
const RESTORE: &str = "as root: dimmer restore";

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
    /// Whether a domain has the feature on without which classes cannot be: 0 or 1. Before TPMI
    /// alone.
    Feature(DomainId),
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
            Self::Feature(domain) => write!(f, "{domain} feature"),
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
            ("feature", []) => Self::Feature(domain),
            ("state", []) => Self::State(domain),
            ("class", [class]) => {
                Self::Class(domain, class.parse().ok().filter(|class| *class < CLASSES)?)
            }
            ("core", [core]) => Self::Core(domain, core.parse().ok()?),
            _ => return None,
        };
        // One name for each place.
        (place.to_string() == name).then_some(place)
    }

    /// The domain that it belongs to.
    pub(crate) const fn domain(self) -> DomainId {
        match self {
            Self::Feature(domain)
            | Self::State(domain)
            | Self::Class(domain, _)
            | Self::Core(domain, _) => domain,
        }
    }

    /// The place as journals name it ([`crate::journal::Pending::paths`]).
    #[must_use]
    pub fn name(self) -> String {
        format!("{DEVICE} {self}")
    }

    /// The place that journals name so.
    fn of_name(name: &str) -> Option<Self> {
        Self::parse(name.strip_prefix(DEVICE)?.strip_prefix(' ')?)
    }

    /// Whether this switches core power on or off for the whole domain.
    pub(crate) const fn is_switch(self) -> bool {
        matches!(self, Self::Feature(_) | Self::State(_))
    }

    /// Whether a change may show later than it is made: with TPMI, states are written into one
    /// register and read from another (`SST_CP_CONTROL_OFFSET`, `SST_CP_STATUS_OFFSET` in
    /// `isst_tpmi_core.c`).
    pub(crate) const fn lags(self) -> bool {
        matches!(self, Self::State(_))
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
    /// Whether it has the feature on; `None` with TPMI, which has no such switch.
    pub feature: Option<bool>,
    /// What each class means, as [`Class::word`] has it.
    pub classes: [u64; CLASSES as usize],
    /// Its cores that are online, ascending.
    pub cores: Vec<Core>,
}

impl Domain {
    /// In words: whether it is on, and if so, what its classes mean and how many cores each has.
    #[must_use]
    pub fn describe(&self) -> String {
        let Self { id, state, classes, cores, .. } = self;
        if !state.is_on {
            return format!("{id}: off, {} cores", cores.len());
        }
        let order = if state.is_ordered { "ordered" } else { "by weight" };
        let of = |number: u8| cores.iter().filter(|core| core.class == number).count();
        let class = |(number, word): (u8, &u64)| {
            let class = Class::of_word(*word);
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
        let is_of_domain =
            |path: &&String| Place::of_name(path).is_some_and(|place| place.domain() == on.id);
        let path = one.paths.iter().find(is_of_domain)?.clone();
        let process = one.process;
        let (error, remedy) = match one.owner {
            Owner::Kept => (JournalError::Kept { path }, RESTORE),
            Owner::Gone => (JournalError::Busy { path, process }, RESTORE),
            Owner::Lives | Owner::Hidden => {
                (JournalError::Busy { path, process }, "wait for its end")
            }
        };
        Some(Unavailable::new(WHAT, error.to_string(), remedy))
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
/// way or not at all, or no `/sys`, which lists the CPUs.
///
/// # Cost
/// A call for each CPU that is online, one for each of their cores, and some for each domain.
pub fn read(root: &Root) -> Result<Vec<Domain>, Unavailable> {
    let access = open(root)?;
    let online =
        access.online().map_err(|error| Unavailable::new(WHAT, error.to_string(), "mount /sys"))?;
    let mut domains: BTreeMap<DomainId, BTreeMap<u8, Vec<CpuId>>> = BTreeMap::new();
    for cpu in online {
        let place = access.place_of(cpu);
        let place = place.map_err(|error| refused(&format!("the place of CPU {cpu}"), &error))?;
        let (id, core) = place.ok_or_else(|| {
            let why = format!("the kernel does not report the power domain of CPU {cpu}");
            Unavailable::new(WHAT, why, "use another kernel")
        })?;
        domains.entry(id).or_default().entry(core).or_default().push(cpu);
    }
    domains.into_iter().map(|(id, cores)| domain(&access, id, cores)).collect()
}

/// What makes the interface complete. The modules by generation: `isst_cpu_ids` in
/// `isst_if_common.c`, and the devices of the other two.
const MODULES: &str = "as root: modprobe isst_tpmi (Sierra Forest, Granite Rapids and later), or \
                       isst_if_mbox_pci and isst_if_mmio (Ice Lake to Emerald Rapids servers)";

fn open(root: &Root) -> Result<Access<'_>, Unavailable> {
    if !root.exists(DEVICE) {
        return Err(Unavailable::new(WHAT, format!("no {DEVICE}"), MODULES));
    }
    Access::open(root, false).map_err(|error| {
        Unavailable::new(WHAT, format!("{DEVICE}: {error}"), remedy(&error, MODULES))
    })
}

fn domain(
    access: &Access<'_>,
    id: DomainId,
    cores: BTreeMap<u8, Vec<CpuId>>,
) -> Result<Domain, Unavailable> {
    if !access.is_supported(id).map_err(|error| refused(&id.to_string(), &error))? {
        let why = format!("the processor has no core power in {id}");
        return Err(Unavailable::new(WHAT, why, "use a processor with it"));
    }
    let word =
        |place: Place| access.read(place).map_err(|error| refused(&place.to_string(), &error));
    let feature = if access.has_feature() { Some(word(Place::Feature(id))? == 1) } else { None };
    let mut classes = [0; CLASSES as usize];
    for (class, number) in classes.iter_mut().zip(0..) {
        *class = word(Place::Class(id, number))?;
    }
    let core = |(number, cpus)| {
        let class = u8::try_from(word(Place::Core(id, number))?).unwrap_or(u8::MAX);
        Ok(Core { number, cpus, class })
    };
    let state = State::of_word(word(Place::State(id))?);
    let cores = cores.into_iter().map(core).collect::<Result<_, _>>()?;
    Ok(Domain { id, state, feature, classes, cores })
}

/// Why a call was refused.
fn refused(what: &str, error: &io::Error) -> Unavailable {
    let why = format!("{DEVICE} does not answer for {what}: {error}");
    Unavailable::new(WHAT, why, remedy(error, "use a processor with it"))
}

/// What helps against an error of the kernel; `otherwise` if it is none of those with a meaning.
fn remedy<'a>(error: &io::Error, otherwise: &'a str) -> &'a str {
    match error.raw_os_error() {
        Some(libc::EBUSY | libc::EINTR) => "try again",
        Some(libc::ENOTTY) => MODULES,
        // `disable_dynamic_sst_features`: the kernel has this answer for it.
        Some(libc::EFAULT) => "switch HWP on: without it the kernel refuses",
        Some(libc::EPERM | libc::EACCES) => "run as root",
        _ => otherwise,
    }
}

/// What a place holds now.
///
/// # Errors
/// [`RootError::Read`], which names the place.
pub(crate) fn held(root: &Root, place: Place) -> Result<u64, RootError> {
    Access::open(root, false)
        .and_then(|access| access.read(place))
        .map_err(|source| root.read_error(&place.name(), source))
}

/// How long a place may take to hold what was written ([`Place::lags`]): this many times
/// [`BETWEEN_READS`]. A guess: four times what the kernel gives another change of TPMI
/// (`SST_PP_LEVEL_CHANGE_TIME_MS` in `isst_tpmi_core.c`).
const READS: u32 = 40;
const BETWEEN_READS: Duration = Duration::from_micros(500);

/// What a place holds after this word was written into it. Waits for it where it may show later.
///
/// # Errors
/// [`RootError::Read`], which names the place.
///
/// # Cost
/// A read, and up to 20 ms if a place that lags does not take the word.
pub(crate) fn held_after(root: &Root, place: Place, word: u64) -> Result<u64, RootError> {
    let mut found = held(root, place)?;
    for _ in 0..if place.lags() { READS } else { 0 } {
        if found == word {
            break;
        }
        std::thread::sleep(BETWEEN_READS);
        found = held(root, place)?;
    }
    Ok(found)
}

/// The first of these places that does not hold this word, and what it holds; `None` if all do.
///
/// # Errors
/// [`RootError::Read`], which names the place.
///
/// # Cost
/// A call for each, and before TPMI some more to find a CPU of the domain.
pub fn changed(
    root: &Root,
    left: impl IntoIterator<Item = (Place, u64)>,
) -> Result<Option<(Place, u64)>, RootError> {
    let access = Access::open(root, false).map_err(|source| root.read_error(DEVICE, source))?;
    for (place, word) in left {
        let found = access.read(place).map_err(|source| root.read_error(&place.name(), source))?;
        if found != word {
            return Ok(Some((place, found)));
        }
    }
    Ok(None)
}

/// Changes what a place holds. [`crate::journal::Journal::change_core_power`] puts it on record
/// first.
///
/// # Errors
/// [`RootError::Write`], which names the place.
pub(crate) fn write(root: &Root, place: Place, word: u64) -> Result<(), RootError> {
    Access::open(root, true)
        .and_then(|access| access.write(place, word))
        .map_err(|source| root.write_error(&place.name(), source))
}

#[cfg(test)]
mod tests;
