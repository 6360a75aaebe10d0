//! Description of the machine, stored with a result so that the result can be understood elsewhere.

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
    /// The microcode version as `/proc/cpuinfo` writes it, if the kernel reports it.
    pub microcode: Option<String>,
    /// The hypervisor's name; `None` on bare metal, or if the hypervisor hides.
    pub hypervisor: Option<String>,
    /// The kernel's release, as from `uname -r`.
    pub kernel_release: Option<String>,
    /// CPUs, cores and caches; empty if the kernel does not report them.
    pub topology: Topology,
    /// CPUs that this process may run on, ascending; empty if the kernel does not report them.
    pub allowed: Vec<CpuId>,
    /// The time-stamp counter.
    pub tsc: Tsc,
    /// Features that code may use.
    pub features: Vec<Feature>,
}

/// The time-stamp counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tsc {
    /// Whether its rate is independent of the core's clock and idle states.
    pub invariant: bool,
    /// Its frequency and the source; `None` if no source reports it and it must be measured.
    pub frequency: Option<(KiloHertz, TscSource)>,
    /// The clock source of the kernel's own time.
    pub clocksource: Option<String>,
}

impl Machine {
    /// Reads the machine under `root` with the processor `cpuid`. Never fails: unreadable values
    /// are empty.
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

    /// Whether code may use vectors wider than 256 bits, or tiles, here.
    #[must_use]
    pub fn has_more_than_256_bits(&self) -> bool {
        self.has(Feature::Avx512f) || self.has(Feature::AmxTile)
    }

    /// Whether code of `class` can run here.
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
