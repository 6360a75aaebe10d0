//! What the CPUID instruction, or a table in place of it, reports about the processor.
//!
//! `raw-cpuid` decodes strings, numbers and frequencies from any source of registers. Feature bits
//! are a table of our own in [`Feature`]: the survey lists them by name, and `raw-cpuid` lacks some
//! that matter here (CLDEMOTE, the hybrid bit, AMX-FP16).

mod feature;
mod table;
mod xgetbv;

use std::sync::Arc;

use dimmer_processor::units::KiloHertz;
use raw_cpuid::{CpuId, CpuIdReader, CpuIdReaderNative, CpuIdResult, Hypervisor};

pub use self::feature::Feature;
pub use self::table::CpuidError;
use crate::microarchitecture::Microarchitecture;
use crate::root::{Root, RootError};
use table::Table;

/// The file at the top of a made-up machine that replaces the instruction.
pub const TABLE_PATH: &str = "/cpuid.txt";

/// Source of the registers: the instruction, or a table.
#[derive(Clone, Debug)]
pub struct Cpuid {
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    Instruction,
    Table(Arc<Table>),
}

/// Vendor and kind of the processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `GenuineIntel`, `AuthenticAMD`; empty if the processor does not report it.
    pub vendor: String,
    /// The marketing name; empty if the processor does not report it.
    pub brand: String,
    /// Display family (base plus extended).
    pub family: u8,
    /// Display model (base plus extended).
    pub model: u8,
    /// Stepping.
    pub stepping: u8,
    /// The microarchitecture that family, model and stepping identify, unless they are `borrowed`.
    pub microarchitecture: Microarchitecture,
    /// What family, model and stepping say, and a feature that none of those processors has: the
    /// hypervisor gives this guest the model of another processor.
    pub borrowed: Option<(Microarchitecture, Feature)>,
}

/// Source of the frequency of the time-stamp counter, most trusted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TscSource {
    /// Leaf 0x40000010: the frequency that the hypervisor reports to this guest.
    Hypervisor,
    /// Leaf 0x15: crystal frequency times a ratio. Exact.
    CrystalRatio,
    /// Leaf 0x16: the processor's base frequency. On Intel processors from Skylake on, the
    /// counter's frequency is within 1 MHz of it (Intel SDM volume 3, section 20.7.3).
    BaseFrequency,
}

impl TscSource {
    /// The source, in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hypervisor => "CPUID leaf 0x40000010 (hypervisor)",
            Self::CrystalRatio => "CPUID leaf 0x15",
            Self::BaseFrequency => "CPUID leaf 0x16 (base frequency, nominal)",
        }
    }
}

impl CpuIdReader for Cpuid {
    fn cpuid2(&self, leaf: u32, subleaf: u32) -> CpuIdResult {
        match &self.source {
            Source::Instruction => CpuIdReaderNative.cpuid2(leaf, subleaf),
            Source::Table(table) => table.registers(leaf, subleaf),
        }
    }
}

impl Cpuid {
    /// The CPUID instruction of the processor that runs this code.
    #[must_use]
    pub fn instruction() -> Self {
        Self { source: Source::Instruction }
    }

    /// Parses a table in the format of `cpuid -r`, plus an optional line `xcr0: 0xe7`. Only the
    /// first processor of the table is used. Leaves that the table does not list are zero.
    ///
    /// # Errors
    /// [`CpuidError::Line`].
    pub fn parse(text: &str) -> Result<Self, CpuidError> {
        Ok(Self { source: Source::Table(Arc::new(Table::parse(text)?)) })
    }

    /// The table in [`TABLE_PATH`] under `root`, if `root` is a made-up machine that has one;
    /// otherwise the instruction.
    ///
    /// # Errors
    /// [`CpuidError`]: the table exists and cannot be read or is malformed.
    pub fn of(root: &Root) -> Result<Self, CpuidError> {
        if root.is_live() {
            return Ok(Self::instruction());
        }
        match root.text(TABLE_PATH) {
            Ok(text) => Self::parse(&text),
            Err(error) if RootError::is_not_found(&error) => Ok(Self::instruction()),
            Err(error) => Err(error.into()),
        }
    }

    /// Vendor and kind of the processor.
    #[must_use]
    pub fn identity(&self) -> Identity {
        let decoder = self.decoder();
        let vendor = decoder.get_vendor_info().map(|info| info.as_str().to_owned());
        let vendor = vendor.unwrap_or_default();
        let brand = decoder.get_processor_brand_string();
        let brand = brand.map(|brand| brand.as_str().trim().to_owned()).unwrap_or_default();
        let version = decoder.get_feature_info();
        let (family, model, stepping) = version.map_or((0, 0, 0), |version| {
            (version.family_id(), version.model_id(), version.stepping_id())
        });
        let named = Microarchitecture::identify(&vendor, family, model, stepping);
        let excess = named.never_has().iter().copied().find(|&feature| self.has(feature));
        let borrowed = excess.map(|feature| (named, feature));
        let microarchitecture = if borrowed.is_some() { Microarchitecture::Unknown } else { named };
        Identity { vendor, brand, family, model, stepping, microarchitecture, borrowed }
    }

    /// The hypervisor's name; `None` on bare metal, or if the hypervisor hides.
    #[must_use]
    pub fn hypervisor(&self) -> Option<String> {
        if !self.has(Feature::Hypervisor) {
            return None;
        }
        let name = match self.decoder().get_hypervisor_info().map(|info| info.identify()) {
            Some(Hypervisor::Xen) => "Xen",
            Some(Hypervisor::VMware) => "VMware",
            Some(Hypervisor::HyperV) => "Hyper-V",
            Some(Hypervisor::KVM) => "KVM",
            Some(Hypervisor::QEMU) => "QEMU",
            Some(Hypervisor::Bhyve) => "bhyve",
            Some(Hypervisor::QNX) => "QNX",
            Some(Hypervisor::ACRN) => "ACRN",
            Some(Hypervisor::Unknown(..)) | None => "unnamed",
        };
        Some(name.to_owned())
    }

    /// Whether the processor has `feature`; the operating system may still have it switched off.
    #[must_use]
    pub fn has(&self, feature: Feature) -> bool {
        let bit = feature.bit();
        // For a leaf above the highest one, Intel processors return another leaf's registers.
        let highest = self.cpuid2(bit.leaf & 0xC000_0000, 0).eax;
        // Hypervisors and old processors return 0 for a whole range that they lack.
        if highest < bit.leaf {
            return false;
        }
        bit.register.of(self.cpuid2(bit.leaf, bit.subleaf)) & (1 << bit.number) != 0
    }

    /// Whether code may use `feature`: the processor has it and the operating system saves the
    /// registers it needs.
    #[must_use]
    pub fn usable(&self, feature: Feature) -> bool {
        let state = feature.required_state();
        self.has(feature) && self.xcr0() & state == state
    }

    /// All features that code may use, in the order of [`Feature::ALL`].
    #[must_use]
    pub fn usable_features(&self) -> Vec<Feature> {
        Feature::ALL.into_iter().filter(|feature| self.usable(*feature)).collect()
    }

    /// XCR0: the register states that the operating system saves; 0 if it saves none.
    #[must_use]
    pub fn xcr0(&self) -> u64 {
        match &self.source {
            Source::Instruction if self.has(Feature::Osxsave) => xgetbv::xcr0(),
            Source::Instruction => 0,
            Source::Table(table) => table.xcr0,
        }
    }

    /// The frequency of the time-stamp counter, if the processor or the hypervisor reports it.
    #[must_use]
    pub fn tsc_frequency(&self) -> Option<(KiloHertz, TscSource)> {
        let decoder = self.decoder();
        let hypervisor = || {
            let khz = decoder.get_hypervisor_info()?.tsc_frequency().filter(|khz| *khz > 0)?;
            Some((KiloHertz::from_khz(khz.into()), TscSource::Hypervisor))
        };
        let crystal = || {
            let hz = decoder.get_tsc_info()?.tsc_frequency().filter(|hz| *hz >= 1000)?;
            Some((KiloHertz::from_khz(hz / 1000), TscSource::CrystalRatio))
        };
        let base = || {
            let mhz = decoder.get_processor_frequency_info()?.processor_base_frequency();
            (mhz > 0).then(|| (KiloHertz::from_mhz(mhz.into()), TscSource::BaseFrequency))
        };
        hypervisor().or_else(crystal).or_else(base)
    }

    /// General-purpose performance counters per CPU, from leaf 0xA (Intel).
    #[must_use]
    pub fn general_counters(&self) -> Option<u8> {
        let info = self.decoder().get_performance_monitoring_info()?;
        Some(info.number_of_counters()).filter(|number| *number > 0)
    }

    fn decoder(&self) -> CpuId<Self> {
        CpuId::with_cpuid_reader(self.clone())
    }
}
