//! Requests of performance levels by registers: Intel's hardware-controlled performance states
//! (HWP) and AMD's collaborative processor performance control (CPPC), for machines on which no
//! driver of the kernel makes them. The processor chooses its clock between two levels; a request
//! here sets both to the same one. Nothing is switched on: firmware or the kernel has done that.
//!
//! A level stands for the base clock times the level by that of the base.
//!
//! Sources: Intel SDM volume 3B, "Hardware-Controlled Performance States" (IA32_PM_ENABLE,
//! IA32_HWP_CAPABILITIES, IA32_HWP_REQUEST); Linux `arch/x86/include/asm/msr-index.h`
//! (`AMD_CPPC_*`) and `Documentation/admin-guide/pm/amd-pstate.rst`.

use dimmer_processor::units::{CpuId, KiloHertz};

use super::{INTEL_PM_ENABLE, Pstates, SetError, online, set};
use crate::cpufreq;
use crate::cpuid::{Cpuid, Feature};
use crate::journal::{Journal, JournalError};
use crate::msr;
use crate::root::Root;
use crate::unavailable::Unavailable;

/// Bits 7:0 highest, 15:8 guaranteed, 31:24 lowest level.
const HWP_CAPABILITIES: u32 = 0x771;
/// Bits 7:0 minimum, 15:8 maximum, 23:16 desired level (0: the processor's choice); bit 42: the
/// request of the package counts instead.
const HWP_REQUEST: u32 = 0x774;
const PACKAGE_CONTROL: u64 = 1 << 42;
/// Bits 7:0 lowest, 23:16 nominal, 31:24 highest level.
const CPPC_CAPABILITIES: u32 = 0xC001_02B0;
/// Bit 0.
const CPPC_ENABLE: u32 = 0xC001_02B1;
/// Bits 7:0 maximum, 15:8 minimum, 23:16 desired level (0: the processor's choice).
const CPPC_REQUEST: u32 = 0xC001_02B3;
/// The three levels of both registers for requests.
const LEVELS: u64 = 0xFF_FFFF;

/// Whose registers they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// Intel's.
    Hwp,
    /// AMD's.
    Cppc,
}

impl Interface {
    /// The one that the processor has, by CPUID.
    #[must_use]
    pub fn of(cpuid: &Cpuid) -> Option<Self> {
        match cpuid.identity().vendor.as_str() {
            "GenuineIntel" if cpuid.has(Feature::Hwp) => Some(Self::Hwp),
            "AuthenticAMD" if cpuid.has(Feature::Cppc) => Some(Self::Cppc),
            _ => None,
        }
    }

    /// The name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hwp => "HWP",
            Self::Cppc => "CPPC",
        }
    }

    /// The register by which a CPU requests levels.
    #[must_use]
    pub const fn request_register(self) -> u32 {
        match self {
            Self::Hwp => HWP_REQUEST,
            Self::Cppc => CPPC_REQUEST,
        }
    }

    fn unavailable(self, why: String, remedy: &str) -> Unavailable {
        Unavailable::new(format!("requests of performance levels ({})", self.name()), why, remedy)
    }
}

/// The levels of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// The CPU.
    pub cpu: CpuId,
    /// Its interface.
    pub interface: Interface,
    /// The slowest one.
    pub lowest: u8,
    /// The fastest one without turbo.
    pub base: u8,
    /// The fastest one.
    pub highest: u8,
    base_clock: KiloHertz,
}

impl Levels {
    /// The clock that a level stands for.
    #[must_use]
    pub fn clock(&self, level: u8) -> KiloHertz {
        let khz = self.base_clock.khz().saturating_mul(level.into()) / u64::from(self.base.max(1));
        KiloHertz::from_khz(khz)
    }

    /// The slowest level that is at least this fast, else the fastest one.
    #[must_use]
    pub fn level(&self, clock: KiloHertz) -> u8 {
        let levels = self.lowest..=self.highest;
        levels.into_iter().find(|level| self.clock(*level) >= clock).unwrap_or(self.highest)
    }

    /// What the register for requests holds now.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub fn requested(&self, root: &Root) -> Result<u64, Unavailable> {
        msr::value(root, self.cpu, self.interface.request_register())
    }

    /// Has the CPU request this level and no other, until `journal` is undone or something else is
    /// requested. The caller has checked that it can ([`check`]).
    ///
    /// # Errors
    /// [`SetError`], also for a level that the CPU does not have.
    pub fn request(&self, journal: &mut Journal, level: u8) -> Result<(), SetError> {
        let Self { cpu, interface, lowest, highest, .. } = *self;
        if !(lowest..=highest).contains(&level) {
            let why = format!("CPU {cpu} has the levels {lowest} to {highest}, and not {level}");
            return Err(interface.unavailable(why, "request one of these").into());
        }
        let level = u64::from(level);
        let value = self.requested(journal.root())? & !LEVELS | level << 8 | level;
        self.put(journal, value)
    }

    /// Has the CPU request this level or any faster one that the value `before` of its register
    /// allows, until `journal` is undone or something else is requested.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub fn request_at_least(
        &self,
        journal: &mut Journal,
        level: u8,
        before: u64,
    ) -> Result<(), SetError> {
        let value = self.at_least(level, before);
        self.put(journal, value)
    }

    /// `before` with no level below this one. A desired level of 0 is the processor's choice.
    fn at_least(&self, level: u8, before: u64) -> u64 {
        let level = u64::from(level.clamp(self.lowest, self.highest));
        let raised = |shift: u32| {
            let found = before >> shift & 0xFF;
            let is_choice = shift == 16 && found == 0;
            if is_choice { 0 } else { found.max(level) << shift }
        };
        before & !LEVELS | raised(0) | raised(8) | raised(16)
    }

    /// Has the register for requests hold this value, which it has held before.
    ///
    /// # Errors
    /// [`SetError`].
    pub fn put(&self, journal: &mut Journal, value: u64) -> Result<(), SetError> {
        match set::write(journal, self.cpu, self.interface.request_register(), value) {
            Err(SetError::Journal(JournalError::NotTaken { .. })) => {
                let why = format!("CPU {} does not take the request {value:#x}", self.cpu);
                Err(self.interface.unavailable(why, "use bare metal").into())
            }
            result => result,
        }
    }
}

/// The levels of each CPU that is online, if they can be requested: no driver of the kernel does,
/// the processor's interface is switched on, and the registers can be written.
///
/// # Errors
/// [`Unavailable`].
///
/// # Cost
/// Four registers of each CPU, and those of its P-states.
pub fn check(root: &Root, cpuid: &Cpuid) -> Result<Vec<Levels>, Unavailable> {
    let Some(interface) = Interface::of(cpuid) else {
        let remedy = "request clocks in another way (`dimmer doctor --all`)";
        let why = "the processor has neither HWP nor CPPC";
        return Err(Unavailable::new("requests of performance levels", why, remedy));
    };
    if let Some(policy) = cpufreq::policies(root).into_iter().next() {
        let driver = policy.driver.as_deref().unwrap_or("unknown");
        let why = format!("the driver {driver} requests levels itself");
        return Err(interface.unavailable(why, "request clocks by its files (cpufreq)"));
    }
    let missing = || interface.unavailable("the base clock is not known".into(), "use bare metal");
    let levels = |cpu| {
        // Cores of several kinds have base clocks of their own.
        let part = Pstates::read_cpu(root, cpuid, cpu)?.part;
        let base_clock = part.clock(part.base()).ok_or_else(missing)?;
        let levels = read(root, interface, cpu, base_clock)?;
        msr::check_writable(root, cpu)?;
        Ok(levels)
    };
    online(root)?.into_iter().map(levels).collect()
}

fn read(
    root: &Root,
    interface: Interface,
    cpu: CpuId,
    base_clock: KiloHertz,
) -> Result<Levels, Unavailable> {
    let (enable, capabilities, shifts) = match interface {
        Interface::Hwp => (INTEL_PM_ENABLE, HWP_CAPABILITIES, [24, 8, 0]),
        Interface::Cppc => (CPPC_ENABLE, CPPC_CAPABILITIES, [0, 16, 24]),
    };
    if msr::value(root, cpu, enable)? & 1 == 0 {
        let why = format!("CPU {cpu} has {} switched off", interface.name());
        return Err(interface.unavailable(why, "request P-states, which count then"));
    }
    if interface == Interface::Hwp && msr::value(root, cpu, HWP_REQUEST)? & PACKAGE_CONTROL != 0 {
        let why = format!("the request of the package counts for CPU {cpu}, and not its own");
        return Err(interface.unavailable(why, "restart the machine"));
    }
    let raw = msr::value(root, cpu, capabilities)?;
    let [lowest, base, highest] =
        shifts.map(|shift| u8::try_from(raw >> shift & 0xFF).unwrap_or(0));
    if lowest == 0 || lowest > base || base > highest {
        let why = format!(
            "CPU {cpu} has the levels {lowest} (lowest), {base} (base), {highest} (highest)"
        );
        return Err(interface.unavailable(why, "use bare metal"));
    }
    Ok(Levels { cpu, interface, lowest, base, highest, base_clock })
}
