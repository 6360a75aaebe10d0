//! What a scan reports of a function.

use std::fmt;
use std::ops::Range;

use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::{Model, Upper};
use dimmer_processor::units::LicenseLevel;

use crate::hook::Unhookable;

/// A function: a range of code that something in the file identifies as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its addresses in memory, before the loader adds its base.
    pub addresses: Range<u64>,
    /// The name of its symbol; `None` without one. The nearest symbol that a stripped library still
    /// exports is usually that of another function.
    pub name: Option<String>,
    /// What identifies it as a function.
    pub origin: Origin,
    /// Decoded instructions by class.
    pub instructions: ClassCounts,
    /// Instructions that name a 512-bit register, as `objdump -d | grep -c zmm` counts them.
    pub zmm: u32,
    /// Instructions with the EVEX encoding, which needs AVX-512 at any width.
    pub evex: u32,
    /// Bytes that do not decode as an instruction, such as data within code.
    pub undecodable_bytes: u32,
    /// Whether it has a `vzeroupper` or `vzeroall`.
    pub vzeroupper: bool,
    /// Whether it may return, or jump to another function, after writing one of the first 16 wide
    /// registers and without `vzeroupper` since.
    ///
    /// An approximation: the analysis follows code in the order of addresses and along forward
    /// jumps, but not along backward or indirect ones, and assumes that calls change nothing.
    /// Registers 16 to 31 do not count, since `vzeroupper` leaves them alone.
    pub may_return_dirty: bool,
    /// Innermost loops with wide instructions, by address.
    pub loops: Vec<HotLoop>,
    /// Whether a jump of five bytes can be put over its entry: the bytes of whole instructions that
    /// it would displace, including a landing pad that stays before them (5 to 23), or why it
    /// cannot.
    pub hook: Result<u8, Unhookable>,
    /// Places inside it that other functions lead to, by address. Only in functions with wide
    /// instructions.
    pub entries: Vec<Entry>,
    /// Functions that jump to those of these places where no jump can be put, by address. A call
    /// that comes in there passes no hook of this function. Functions that this one jumps to, such
    /// as its own cold part, are left out.
    pub leaders: Vec<Leader>,
}

/// A function that jumps into the middle of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Its first address.
    pub start: u64,
    /// The name of its symbol; `None` without one.
    pub name: Option<String>,
    /// Whether a jump can be put over its entry, as [`Function::hook`].
    pub hook: Result<u8, Unhookable>,
}

/// A place inside a function that other functions jump to or call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The place, in bytes from the function's start.
    pub offset: u32,
    /// Whether a jump can be put there, as at the function's start. If so, execution comes there
    /// from elsewhere: nothing within the function leads there, unless it is the only way in.
    pub hook: Result<u8, Unhookable>,
    /// Whether another function calls it, rather than jumps there.
    pub is_called: bool,
}

impl Function {
    /// The most demanding class that it contains; `None` if it holds no instruction.
    #[must_use]
    pub fn heaviest(&self) -> Option<InstructionClass> {
        self.instructions.heaviest()
    }

    /// The addresses of its entries that can be hooked, its start first, each with the number of
    /// bytes that a jump there displaces.
    pub fn hookable_entries(&self) -> impl Iterator<Item = (u64, u8)> + '_ {
        let inner = self.entries.iter().map(|entry| (u64::from(entry.offset), entry.hook));
        let all = [(0, self.hook)].into_iter().chain(inner);
        all.filter_map(|(offset, hook)| Some((self.addresses.start + offset, hook.ok()?)))
    }

    /// Its leaders whose entry can be hooked, by address, each with the number of bytes that a jump
    /// there displaces. Calls of a leader need not enter this function.
    pub fn hookable_leaders(&self) -> impl Iterator<Item = (u64, u8)> + '_ {
        self.leaders.iter().filter_map(|leader| Some((leader.start, leader.hook.ok()?)))
    }

    /// Whether calls may enter it in the middle where no hook counts them, even if its leaders are
    /// hooked. `is_reported` is whether the function at an address is reported in its own right;
    /// what is said there of its hook holds for calls that come through it as well.
    pub fn is_entered_unseen(&self, is_reported: impl Fn(u64) -> bool) -> bool {
        let unseen = |leader: &Leader| leader.hook.is_err() && !is_reported(leader.start);
        self.entries.iter().any(|entry| entry.is_called && entry.hook.is_err())
            || self.leaders.iter().any(unseen)
    }

    /// The license level that it requests on a processor; see [`level`].
    #[must_use]
    pub fn level(&self, model: &Model) -> LicenseLevel {
        let present = self.instructions.iter().filter(|(_, count)| *count > 0);
        level(present.map(|(class, _)| class), self.zmm > 0, model)
    }
}

/// The license level that code with instructions of these classes requests on a processor: the
/// highest of all. Upper register halves count as dirty if the code uses 512-bit registers.
#[must_use]
pub fn level(
    classes: impl IntoIterator<Item = InstructionClass>,
    uses_zmm: bool,
    model: &Model,
) -> LicenseLevel {
    let upper = if uses_zmm { Upper::Dirty } else { Upper::Any };
    let levels = classes.into_iter().map(|class| model.level_of(class, upper));
    levels.max().unwrap_or(LicenseLevel::new(0))
}

/// What identifies code as a function, the most reliable first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// A symbol of type function.
    Symbol,
    /// An entry of `.eh_frame`.
    Frame,
    /// A call, a jump or a pointer from elsewhere leads into code that nothing else describes.
    Seed,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Symbol => "symbol",
            Self::Frame => "frame",
            Self::Seed => "seed",
        })
    }
}

/// A loop whose body has wide instructions (256 bits or more, or tiles): the code that a backward
/// jump encloses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotLoop {
    /// From the target of the jump to its end.
    pub addresses: Range<u64>,
    /// The instructions of the loop by class.
    pub instructions: ClassCounts,
}

/// A number of instructions for each class. Instructions on neither vectors nor tiles count as
/// scalar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassCounts([u32; InstructionClass::ALL.len()]);

impl ClassCounts {
    /// The number of instructions of `class`.
    #[must_use]
    pub const fn of(&self, class: InstructionClass) -> u32 {
        self.0[class as usize]
    }

    /// All classes with their numbers, least demanding first.
    pub fn iter(&self) -> impl Iterator<Item = (InstructionClass, u32)> + '_ {
        InstructionClass::ALL.into_iter().zip(self.0)
    }

    /// The number of instructions of all classes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().copied().map(u64::from).sum()
    }

    /// The number of wide instructions: 256 bits or more, or tiles.
    #[must_use]
    pub fn wide(&self) -> u64 {
        let wide = self.iter().filter(|(class, _)| *class >= InstructionClass::Light256);
        wide.map(|(_, count)| u64::from(count)).sum()
    }

    /// The most demanding class with at least one instruction.
    #[must_use]
    pub fn heaviest(&self) -> Option<InstructionClass> {
        self.iter().filter(|(_, count)| *count > 0).map(|(class, _)| class).last()
    }

    /// Whether there are no instructions.
    pub(crate) fn is_empty(&self) -> bool {
        self.heaviest().is_none()
    }

    /// Counts one more instruction of `class`.
    pub(crate) fn count(&mut self, class: InstructionClass) {
        self.0[class as usize] = self.0[class as usize].saturating_add(1);
    }

    /// Subtracts the counts of `other`, whose instructions are among these.
    pub(crate) fn less(&self, other: &Self) -> Self {
        let mut rest = *self;
        for (own, fewer) in rest.0.iter_mut().zip(other.0) {
            *own = own.saturating_sub(fewer);
        }
        rest
    }

    /// Subtracts `number` scalar instructions.
    pub(crate) fn without_scalar(&mut self, number: u32) {
        self.0[InstructionClass::Scalar as usize] =
            self.of(InstructionClass::Scalar).saturating_sub(number);
    }
}
