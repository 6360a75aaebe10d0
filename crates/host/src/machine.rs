//! Which machine this is: what a result carries along so that it can be understood elsewhere.

use dimmer_processor::class::InstructionClass;
use dimmer_processor::topology::Topology;
use dimmer_processor::units::{CpuId, KiloHertz};

use crate::cpuid::{Cpuid, Feature, Identity, TscSource};
use crate::root::Root;
use crate::{privilege, topology};

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The processor.
    pub identity: Identity,
    /// The version of its microcode as `/proc/cpuinfo` writes it, where the kernel says.
    pub microcode: Option<String>,
    /// The hypervisor underneath; `None` on bare metal, or if it hides.
    pub hypervisor: Option<String>,
    /// The kernel's release, as `uname -r`.
    pub kernel_release: Option<String>,
    /// Hardware threads, cores and caches; empty where the kernel does not tell.
    pub topology: Topology,
    /// Hardware threads this process may run on, ascending; empty where the kernel does not tell.
    pub allowed: Vec<CpuId>,
    /// The time-stamp counter.
    pub tsc: Tsc,
    /// Features that code may use.
    pub features: Vec<Feature>,
}

/// The time-stamp counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tsc {
    /// Whether it counts at one rate whatever the clock and the idle states do.
    pub invariant: bool,
    /// Its frequency and who says so. `None`: nobody does, it has to be measured.
    pub frequency: Option<(KiloHertz, TscSource)>,
    /// What the kernel itself tells the time by.
    pub clocksource: Option<String>,
}

impl Machine {
    /// Reads the machine under `root` with the processor `cpuid`. Never fails: what cannot be
    /// read is empty.
    #[must_use]
    pub fn read(root: &Root, cpuid: &Cpuid) -> Self {
        Self {
            identity: cpuid.identity(),
            microcode: microcode(root),
            hypervisor: cpuid.hypervisor(),
            kernel_release: root.text("/proc/sys/kernel/osrelease").ok(),
            topology: topology::read(root).unwrap_or_default(),
            allowed: privilege::allowed_cpus(root).unwrap_or_default(),
            tsc: Tsc {
                invariant: cpuid.has(Feature::InvariantTsc),
                frequency: cpuid.tsc_frequency(),
                clocksource: root.text(CLOCKSOURCE).ok(),
            },
            features: cpuid.usable_features(),
        }
    }

    /// Whether code may use `feature` here.
    #[must_use]
    pub fn has(&self, feature: Feature) -> bool {
        self.features.contains(&feature)
    }

    /// Whether code may use vectors of more than 256 bits, or tiles, here.
    #[must_use]
    pub fn has_more_than_256_bits(&self) -> bool {
        self.has(Feature::Avx512f) || self.has(Feature::AmxTile)
    }

    /// Whether code of `class` can run here at all.
    #[must_use]
    pub fn runs(&self, class: InstructionClass) -> bool {
        use InstructionClass as C;
        match class {
            C::Scalar | C::Light128 | C::Heavy128 => true,
            C::Light256 | C::Heavy256 => self.has(Feature::Avx),
            C::Light512 | C::Heavy512 => self.has(Feature::Avx512f),
            C::Tile => self.has(Feature::AmxTile),
        }
    }
}

const CLOCKSOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

fn microcode(root: &Root) -> Option<String> {
    let text = root.text("/proc/cpuinfo").ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix("microcode")?.split_once(':'));
    value.map(|(_, version)| version.trim().to_owned())
}
