//! What the processor says about itself through the CPUID instruction, or what a table says that
//! stands in for it.
//!
//! Strings, numbers and frequencies are decoded by `raw-cpuid`, which takes any source of
//! registers. Feature bits are a table of our own in [`Feature`], because the survey lists them by
//! name and because `raw-cpuid` lacks some that matter here (CLDEMOTE, the hybrid bit, AMX-FP16).

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

/// The file at the top of a made-up machine that stands in for the instruction.
pub const TABLE_PATH: &str = "/cpuid.txt";

/// Where registers come from: the instruction, or a table.
#[derive(Clone, Debug)]
pub struct Cpuid {
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    Instruction,
    Table(Arc<Table>),
}

/// Who made the processor and which one it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `GenuineIntel`, `AuthenticAMD`; empty if the processor does not say.
    pub vendor: String,
    /// The marketing name; empty if the processor does not say.
    pub brand: String,
    /// Display family (base plus extended).
    pub family: u8,
    /// Display model (base plus extended).
    pub model: u8,
    /// Stepping.
    pub stepping: u8,
    /// What family, model and stepping stand for.
    pub microarchitecture: Microarchitecture,
}

/// Where a frequency of the time-stamp counter comes from, most trusted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TscSource {
    /// Leaf 0x40000010: the hypervisor says what it gives this guest.
    Hypervisor,
    /// Leaf 0x15: crystal frequency times a ratio. Exact.
    CrystalRatio,
    /// Leaf 0x16: the processor's base frequency, which is the counter's within 1 MHz on Intel
    /// processors from Skylake on (Intel SDM volume 3, section 20.7.3).
    BaseFrequency,
}

impl TscSource {
    /// The source in words.
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
    /// The CPUID instruction of the processor this runs on.
    #[must_use]
    pub fn instruction() -> Self {
        Self { source: Source::Instruction }
    }

    /// A table in the format of `cpuid -r`, of which the first processor is taken, plus an
    /// optional line `xcr0: 0xe7`. Leaves that it does not list are zero.
    ///
    /// # Errors
    /// [`CpuidError::Line`].
    pub fn parse(text: &str) -> Result<Self, CpuidError> {
        Ok(Self { source: Source::Table(Arc::new(Table::parse(text)?)) })
    }

    /// The table in [`TABLE_PATH`] under `root`, if it is a made-up machine and has one; else the
    /// instruction.
    ///
    /// # Errors
    /// [`CpuidError`]: the table is there and cannot be read or is malformed.
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

    /// Who made the processor and which one it is.
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
        let microarchitecture = Microarchitecture::identify(&vendor, family, model, stepping);
        Identity { vendor, brand, family, model, stepping, microarchitecture }
    }

    /// The hypervisor underneath; `None` on bare metal, or if it hides.
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

    /// Whether the processor has `feature`; the operating system may still keep it switched off.
    #[must_use]
    pub fn has(&self, feature: Feature) -> bool {
        let bit = feature.bit();
        // Above the highest leaf Intel processors answer with another leaf's registers.
        let highest = self.cpuid2(bit.leaf & 0xC000_0000, 0).eax;
        // Hypervisors and old processors answer 0 for a whole range they lack.
        if highest < bit.leaf {
            return false;
        }
        bit.register.of(self.cpuid2(bit.leaf, bit.subleaf)) & (1 << bit.number) != 0
    }

    /// Whether code may use `feature`: the processor has it and the operating system keeps the
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

    /// XCR0: the register states that the operating system keeps; 0 if it keeps none.
    #[must_use]
    pub fn xcr0(&self) -> u64 {
        match &self.source {
            Source::Instruction if self.has(Feature::Osxsave) => xgetbv::xcr0(),
            Source::Instruction => 0,
            Source::Table(table) => table.xcr0,
        }
    }

    /// The frequency of the time-stamp counter where the processor or the hypervisor gives it.
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

    /// General-purpose performance counters per hardware thread, as leaf 0xA gives them (Intel).
    #[must_use]
    pub fn general_counters(&self) -> Option<u8> {
        let info = self.decoder().get_performance_monitoring_info()?;
        Some(info.number_of_counters()).filter(|number| *number > 0)
    }

    fn decoder(&self) -> CpuId<Self> {
        CpuId::with_cpuid_reader(self.clone())
    }
}
