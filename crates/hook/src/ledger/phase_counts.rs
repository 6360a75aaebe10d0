//! What a slot holds of its thread's wide phases.

/// What is known of a thread's wide phases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseCounts {
    /// How often it went to wide CPUs.
    pub to_wide: u32,
    /// How often it was given its own back.
    pub back: u32,
    /// Why it has stayed, a bit for each reason. The numbers of the bits are for those to know who
    /// write and read them.
    pub stays: u32,
    /// The time that it could run on wide CPUs (ns).
    pub wide_ns: u64,
}

impl PhaseCounts {
    /// Those of two threads together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            to_wide: self.to_wide.saturating_add(other.to_wide),
            back: self.back.saturating_add(other.back),
            stays: self.stays | other.stays,
            wide_ns: self.wide_ns.saturating_add(other.wide_ns),
        }
    }
}
