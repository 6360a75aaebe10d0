//! The P-states of this machine: what they are, which of them each CPU requests and has, and how to
//! set them. [`dimmer_processor::pstate`] decodes the registers.
//!
//! Implements the tool of paper 004, section 4.3: P-states are requested for each CPU and defined
//! for all of them alike. P-states have the numbers of their definitions. Where some are boosted
//! (family 15h, paper 002 section 2.1), the registers for requests count from the first one after
//! these; the numbers here do not.
//!
//! Sources: as in [`dimmer_processor::pstate`]; AMD64 Architecture Programmer's Manual volume 2,
//! section 17.1 "P-State Control"; Intel SDM volume 4.

pub mod driver;
pub mod levels;
mod plan;
mod set;
pub mod words;

use dimmer_processor::pstate::{Layout, Limits, States};
use dimmer_processor::units::{CpuId, KiloHertz};

pub use self::plan::{Plan, PlanError, Redefinition, Wanted};
pub(crate) use self::set::control;
pub use self::set::{SetError, check_requests, request, set};
use crate::cpuid::{Cpuid, Feature, Identity};
use crate::microarchitecture::Microarchitecture;
use crate::msr;
use crate::root::Root;
use crate::topology;
use crate::unavailable::Unavailable;

/// Bits 2:0 CurPstateLimit, the fastest P-state that may be in force; 6:4 PstateMaxVal, the slowest
/// one.
const AMD_LIMIT: u32 = 0xC001_0061;
/// Bits 2:0 PstateCmd: the P-state that is requested.
const AMD_CONTROL: u32 = 0xC001_0062;
/// Bits 2:0 CurPstate.
const AMD_STATUS: u32 = 0xC001_0063;
/// The first of the definitions.
const AMD_DEFINITIONS: u32 = 0xC001_0064;
/// Bits 18:16 CurPstate, numbered as the definitions are, boosted ones included (family 15h).
const AMD_COFVID: u32 = 0xC001_0071;
/// D18F4x15C "Core Performance Boost Control" of family 15h: bits 4:2 NumBoostStates.
const BOOST: (&str, u64) = ("/sys/bus/pci/devices/0000:00:18.4/config", 0x15C);

const INTEL_PLATFORM_INFO: u32 = 0xCE;
const INTEL_STATUS: u32 = 0x198;
const INTEL_CONTROL: u32 = 0x199;
const INTEL_TURBO: u32 = 0x1AD;
/// Bit 0: the processor chooses P-states by itself (HWP) until it is reset.
const INTEL_PM_ENABLE: u32 = 0x770;

/// The noun in refusals.
const WHAT: &str = "P-states";

/// The P-states of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pstates {
    /// The processor.
    pub identity: Identity,
    /// What can be requested.
    pub part: Part,
    /// What each CPU that is online requests and has, ascending.
    pub cpus: Vec<CpuState>,
    /// CPUs whose definitions differ from those of the first one; the manuals forbid it.
    pub differing: Vec<CpuId>,
}

/// The P-states that can be requested, by vendor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Definitions, which software can change.
    Amd {
        /// The definitions.
        states: States,
        /// The fastest P-state that may be in force now.
        fastest: u8,
        /// The slowest P-state.
        slowest: u8,
    },
    /// Ratios to 100 MHz between limits: P39 is 3900 MHz, as in paper 002, section 2.2.
    Intel {
        /// The limits.
        limits: Limits,
        /// Whether the processor ignores requests, because it chooses by itself (HWP).
        has_hwp: bool,
    },
}

impl Part {
    /// The fastest P-state that can be requested.
    #[must_use]
    pub fn fastest(&self) -> u8 {
        match self {
            Self::Amd { fastest, .. } => *fastest,
            Self::Intel { limits, .. } => limits.highest(),
        }
    }

    /// The slowest P-state.
    #[must_use]
    pub const fn slowest(&self) -> u8 {
        match self {
            Self::Amd { slowest, .. } => *slowest,
            Self::Intel { limits, .. } => limits.lowest,
        }
    }

    /// The fastest P-state without turbo. On AMD's processors that is the fastest that can be
    /// requested: those that are boosted cannot, and turbo is no P-state.
    #[must_use]
    pub fn base(&self) -> u8 {
        match self {
            Self::Amd { fastest, .. } => *fastest,
            Self::Intel { limits, .. } => limits.base,
        }
    }

    /// The clock of a P-state; `None` if it is not in use.
    #[must_use]
    pub fn clock(&self, number: u8) -> Option<KiloHertz> {
        match self {
            Self::Amd { states, .. } => states.definition(number)?.frequency,
            Self::Intel { .. } => Some(Limits::frequency(number)),
        }
    }

    /// The register by which a CPU requests a P-state.
    #[must_use]
    pub const fn request_register(&self) -> u32 {
        match self {
            Self::Amd { .. } => AMD_CONTROL,
            Self::Intel { .. } => INTEL_CONTROL,
        }
    }

    /// The P-state that a CPU requests now.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub fn requested(&self, root: &Root, cpu: CpuId) -> Result<u8, Unavailable> {
        match self {
            Self::Amd { states, .. } => {
                let register = msr::value(root, cpu, AMD_CONTROL)?;
                Ok(states.base().saturating_add(low_bits(register)))
            }
            Self::Intel { .. } => Ok(Limits::ratio(msr::value(root, cpu, INTEL_CONTROL)?)),
        }
    }
}

/// The P-states of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuState {
    /// The CPU.
    pub cpu: CpuId,
    /// The P-state that it requests.
    pub requested: u8,
    /// The P-state that it has. Its core may run at another clock: SMT siblings share one, cores of
    /// a module (family 15h) or of a CCX (family 17h) depend on each other, and turbo is no P-state
    /// of families 17h and later.
    pub current: u8,
}

impl Pstates {
    /// Reads the P-states of the machine under `root`. Changes nothing.
    ///
    /// # Errors
    /// [`Unavailable`]: unknown processor, or its registers cannot be read or are empty.
    ///
    /// # Cost
    /// Ten registers for each CPU, each with an interrupt to it.
    pub fn read(root: &Root, cpuid: &Cpuid) -> Result<Self, Unavailable> {
        Self::read_cpus(root, cpuid, &online(root)?)
    }

    /// As [`Self::read`], with this CPU alone.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_cpu(root: &Root, cpuid: &Cpuid, cpu: CpuId) -> Result<Self, Unavailable> {
        Self::read_cpus(root, cpuid, &[cpu])
    }

    /// As [`Self::read`], with the first CPU that is online alone.
    pub(crate) fn read_first(root: &Root, cpuid: &Cpuid) -> Result<Self, Unavailable> {
        Self::read_cpus(root, cpuid, online(root)?.get(..1).unwrap_or_default())
    }

    fn read_cpus(root: &Root, cpuid: &Cpuid, cpus: &[CpuId]) -> Result<Self, Unavailable> {
        let identity = cpuid.identity();
        let is_known = identity.microarchitecture != Microarchitecture::Unknown;
        match (identity.vendor.as_str(), Layout::of(identity.family, identity.model)) {
            ("AuthenticAMD", Some(layout)) => amd(root, identity, layout, cpus),
            ("GenuineIntel", _) if is_known => intel(root, identity, cpuid.has(Feature::Hwp), cpus),
            _ => Err(unknown(&identity)),
        }
    }
}

fn online(root: &Root) -> Result<Vec<CpuId>, Unavailable> {
    topology::online(root)
        .map_err(|error| Unavailable::new(WHAT, error.to_string(), "mount /proc and /sys"))
}

/// The CPU whose registers stand for those of all.
fn first(cpus: &[CpuId]) -> CpuId {
    cpus.first().copied().unwrap_or(CpuId::new(0))
}

fn unknown(identity: &Identity) -> Unavailable {
    let Identity { vendor, family, model, .. } = identity;
    Unavailable::new(
        WHAT,
        format!("the registers of {vendor} family {family:#x} model {model:#x} are not known"),
        "known are AMD's families 0x15, 0x17, 0x19 and 0x1a, and Intel's from Haswell on",
    )
}

fn empty(what: &str) -> Unavailable {
    let why = format!("{what}, as in virtual machines");
    Unavailable::new(WHAT, why, "use bare metal")
}

fn amd(
    root: &Root,
    identity: Identity,
    layout: Layout,
    online: &[CpuId],
) -> Result<Pstates, Unavailable> {
    let first = first(online);
    let is_15h = identity.family == 0x15;
    let raw = definitions(root, first)?;
    if !raw.iter().any(|raw| layout.decode(*raw).is_enabled) {
        return Err(empty("no P-state is defined"));
    }
    let base = if is_15h { boosted(root)? } else { 0 };
    let numbered = |register: u64| base.saturating_add(low_bits(register));
    let limit = msr::value(root, first, AMD_LIMIT)?;
    let states = States::new(layout, base, raw);
    let part = Part::Amd { states, fastest: numbered(limit), slowest: numbered(limit >> 4) };
    let mut differing = Vec::new();
    let mut cpus = Vec::new();
    for &cpu in online {
        if definitions(root, cpu)? != raw {
            differing.push(cpu);
        }
        let requested = part.requested(root, cpu)?;
        let current = if is_15h {
            low_bits(msr::value(root, cpu, AMD_COFVID)? >> 16)
        } else {
            numbered(msr::value(root, cpu, AMD_STATUS)?)
        };
        cpus.push(CpuState { cpu, requested, current });
    }
    Ok(Pstates { identity, part, cpus, differing })
}

fn definitions(root: &Root, cpu: CpuId) -> Result<[u64; States::COUNT], Unavailable> {
    let mut raw = [0; States::COUNT];
    for (raw, register) in raw.iter_mut().zip(AMD_DEFINITIONS..) {
        *raw = msr::value(root, cpu, register)?;
    }
    Ok(raw)
}

/// The number of P-states that the processor boosts to by itself.
fn boosted(root: &Root) -> Result<u8, Unavailable> {
    let (path, offset) = BOOST;
    let mut bytes = [0; 4];
    root.read_at(path, offset, &mut bytes).map_err(|_| {
        let why = format!("cannot read the number of boosted P-states in {path}");
        Unavailable::new(WHAT, why, "run as root, on bare metal")
    })?;
    Ok(low_bits(u64::from(u32::from_le_bytes(bytes)) >> 2))
}

/// Bits 2:0.
fn low_bits(register: u64) -> u8 {
    u8::try_from(register & 7).unwrap_or(7)
}

fn intel(
    root: &Root,
    identity: Identity,
    knows_hwp: bool,
    online: &[CpuId],
) -> Result<Pstates, Unavailable> {
    let first = first(online);
    let platform = msr::value(root, first, INTEL_PLATFORM_INFO)?;
    let turbo = msr::value(root, first, INTEL_TURBO)?;
    let limits =
        Limits::decode(platform, turbo).ok_or_else(|| empty("MSR_PLATFORM_INFO has no ratios"))?;
    let has_hwp = knows_hwp && msr::value(root, first, INTEL_PM_ENABLE)? & 1 == 1;
    let part = Part::Intel { limits, has_hwp };
    let mut cpus = Vec::new();
    for &cpu in online {
        let requested = part.requested(root, cpu)?;
        let current = Limits::ratio(msr::value(root, cpu, INTEL_STATUS)?);
        cpus.push(CpuState { cpu, requested, current });
    }
    Ok(Pstates { identity, part, cpus, differing: Vec::new() })
}
