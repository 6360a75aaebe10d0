//! Kernels: the stretches of wide SIMD code whose effect on the clock is measured.
//!
//! A [`Kernel`] is data: a name, an instruction class, the features that the processor must have,
//! and the bytes of its instructions one by one. The instructions themselves are in `arch`.
//! [`find`] makes mixtures of two or more kernels by ratio. [`crate::silicon`] executes kernels.

mod mixture;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::OnceLock;

use dimmer_processor::class::InstructionClass;

pub use crate::arch::features::Feature;
use crate::arch::kernels::{split, templates};

/// Whether the instructions of a kernel depend on each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependency {
    /// Each instruction has its own destination: bound by throughput.
    Unrolled,
    /// Each instruction reads the result of the previous one: bound by latency. (The "non-unrolled"
    /// code of paper 000 §3.3.2 used one register triple; only its multiply-adds depended on each
    /// other. Here all do.)
    Dependent,
}

/// State of the upper halves of the vector registers while a kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Upper {
    /// As compilers leave it: clean before, and `vzeroupper` after.
    Clean,
    /// A 512-bit register was written long before and never cleaned (paper 000 §3.3.3).
    Dirty,
    /// As `Dirty`, but `vzeroupper` follows at once: the control of that experiment.
    Zeroed,
}

/// One template of the catalogue, with its declared properties.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Template {
    pub(crate) mnemonic: &'static str,
    pub(crate) class: InstructionClass,
    pub(crate) dependency: Dependency,
    /// Whether each instruction reads one operand from memory (first-level cache).
    pub(crate) loads: bool,
    pub(crate) needs: &'static [Feature],
    pub(crate) bytes: &'static [u8],
}

/// A stretch of code to be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// `mnemonic-width-dependency[-load][-upper]`, or the names of a mixture's kernels with their
    /// shares.
    pub name: String,
    /// The class of its most demanding instruction.
    pub class: InstructionClass,
    /// Whether its instructions depend on each other.
    pub dependency: Dependency,
    /// The state of the upper register halves around it.
    pub upper: Upper,
    /// The extensions that the processor must have.
    pub needs: Vec<Feature>,
    /// One period: the encoded instructions in order. A burst repeats it.
    pub instructions: Vec<Vec<u8>>,
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
}

/// A kernel that does not exist, or a mixture that cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// No kernel has this name.
    #[error("unknown kernel `{name}`, expected one of:\n  {}\nor a mixture such as `vfmadd231pd-512-unrolled:1+add-scalar-unrolled:15`", names().join("\n  "))]
    Unknown {
        /// The requested name.
        name: String,
    },
    /// A part of a mixture has no share, or its share is not a whole number from 1 to 4096.
    #[error("mixture `{mixture}`: part `{part}` needs a share from 1 to {max}, as in `{part}:3`", max = mixture::MAX_SHARE)]
    Share {
        /// The whole mixture.
        mixture: String,
        /// The part at fault.
        part: String,
    },
}

impl Kernel {
    fn from_template(template: &Template, upper: Upper) -> Self {
        let width = match template.class {
            InstructionClass::Scalar => "scalar",
            InstructionClass::Light128 | InstructionClass::Heavy128 => "128",
            InstructionClass::Light256 | InstructionClass::Heavy256 => "256",
            InstructionClass::Light512 | InstructionClass::Heavy512 => "512",
            InstructionClass::Tile => "tile",
        };
        let dependency = match template.dependency {
            Dependency::Unrolled => "unrolled",
            Dependency::Dependent => "dependent",
        };
        let load = if template.loads { "-load" } else { "" };
        let (suffix, dirties) = match upper {
            Upper::Clean => ("", false),
            Upper::Dirty => ("-dirty", true),
            Upper::Zeroed => ("-zeroupper", true),
        };
        let mut needs = template.needs.to_vec();
        if dirties {
            needs.push(Feature::Avx512f);
        }
        Self {
            name: format!("{}-{width}-{dependency}{load}{suffix}", template.mnemonic),
            class: template.class,
            dependency: template.dependency,
            upper,
            needs,
            instructions: split(template.bytes),
        }
    }

    /// Whether the kernel's registers are 256 bits or wider, so that it leaves upper halves dirty.
    #[must_use]
    pub fn is_wide(&self) -> bool {
        self.class >= InstructionClass::Light256
    }
}

/// All kernels, without mixtures.
#[must_use]
pub fn all() -> &'static [Kernel] {
    static ALL: OnceLock<Vec<Kernel>> = OnceLock::new();
    ALL.get_or_init(|| {
        let templates = templates();
        let mut kernels: Vec<Kernel> =
            templates.iter().map(|t| Kernel::from_template(t, Upper::Clean)).collect();
        let heavy_256 = templates.iter().find(|t| {
            t.mnemonic == "vfmadd231pd"
                && t.class == InstructionClass::Heavy256
                && t.dependency == Dependency::Unrolled
        });
        for upper in [Upper::Dirty, Upper::Zeroed] {
            kernels.extend(heavy_256.map(|t| Kernel::from_template(t, upper)));
        }
        kernels
    })
}

/// The names of all kernels.
#[must_use]
pub fn names() -> Vec<&'static str> {
    all().iter().map(|kernel| kernel.name.as_str()).collect()
}

/// The kernel of that name, or the mixture that `name` describes: `KERNEL:SHARE+KERNEL:SHARE...`,
/// where shares are numbers of instructions.
///
/// # Errors
/// [`KernelError::Unknown`] with the accepted names; [`KernelError::Share`].
pub fn find(name: &str) -> Result<Kernel, KernelError> {
    if name.contains('+') {
        return mixture::parse(name);
    }
    let known = all().iter().find(|kernel| kernel.name == name);
    known.cloned().ok_or_else(|| KernelError::Unknown { name: name.to_owned() })
}

/// The kernel that replaces a burst in baselines: the same number of scalar instructions.
#[must_use]
pub fn stand_in() -> Kernel {
    const NAME: &str = "add-scalar-unrolled";
    // The catalogue has this name: the tests of mixtures fail without it. The fall-back only avoids
    // an empty kernel, which could not run.
    all().iter().find(|kernel| kernel.name == NAME).cloned().unwrap_or_else(|| all()[0].clone())
}
