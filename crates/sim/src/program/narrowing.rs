//! Code in narrower registers, which does the same work.

use dimmer_processor::class::InstructionClass;

use super::Segment;

/// The part of its throughput that code keeps at half the width: half of the work in an
/// instruction, in as many instructions a cycle. `policy::ways` assumes no less.
const NARROW_SPEED: f64 = 0.5;

/// Which classes of code are replaced by which, of half their width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Narrowing {
    from: [InstructionClass; 2],
    to: [InstructionClass; 2],
}

impl Narrowing {
    /// The widest code among these segments in registers of half the width; `None` if none has more
    /// than 128 bits and code of half its width.
    pub(crate) fn of(segments: impl Iterator<Item = Segment>) -> Option<Self> {
        use InstructionClass::{Heavy128, Heavy256, Heavy512, Light128, Light256, Light512};
        let of_512 = Self { from: [Light512, Heavy512], to: [Light256, Heavy256] };
        let of_256 = Self { from: [Light256, Heavy256], to: [Light128, Heavy128] };
        let mut found = None;
        for segment in segments {
            if of_512.from.contains(&segment.class) {
                return Some(of_512);
            }
            found = found.or_else(|| of_256.from.contains(&segment.class).then_some(of_256));
        }
        found
    }

    /// The same work with narrower code; `None` if the segment has none of the widest code.
    pub(crate) fn narrow(&self, segment: &Segment) -> Option<Segment> {
        Some(Segment {
            class: replaced(segment.class, self.from, self.to)?,
            ipc: segment.ipc * NARROW_SPEED,
            // As dense as before: what counts as one instruction here is two of them.
            share: segment.share / NARROW_SPEED,
            ..*segment
        })
    }

    /// What [`Self::narrow`] has made this segment from.
    pub(crate) fn widen(&self, segment: &Segment) -> Option<Segment> {
        Some(Segment {
            class: replaced(segment.class, self.to, self.from)?,
            ipc: segment.ipc / NARROW_SPEED,
            share: segment.share * NARROW_SPEED,
            ..*segment
        })
    }
}

fn replaced(
    class: InstructionClass,
    from: [InstructionClass; 2],
    to: [InstructionClass; 2],
) -> Option<InstructionClass> {
    from.into_iter().zip(to).find_map(|(one, other)| (one == class).then_some(other))
}
