//! Executable memory: routines assembled from kernel templates.
//!
//! The area is writable or executable, never both. It can lie on huge pages (paper 000 §3.2.4
//! suspected instruction-cache misses at page borders and left huge pages as future work).

use std::collections::BTreeMap;
use std::io;
use std::ptr::NonNull;

use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap,
};

use crate::arch::routines::{self, AssemblyError};
use crate::kernel::Kernel;
use crate::program::{Operands, Work};
use crate::target::TargetError;

/// Size of the area: one huge page.
const AREA: usize = 2 << 20;

/// An area of executable memory and the routines in it.
#[derive(Debug)]
pub(super) struct CodeArea {
    memory: NonNull<u8>,
    used: usize,
    bursts: BTreeMap<(String, u32, Operands), usize>,
    fixed: Fixed,
}

/// Offsets of the routines that every program may use.
#[derive(Clone, Copy, Debug, Default)]
struct Fixed {
    clock: usize,
    unit: usize,
    issue: usize,
    dirty: usize,
    zeroed: usize,
}

// SAFETY: the area is plain memory owned by this value; no thread-local state belongs to it.
unsafe impl Send for CodeArea {}

impl CodeArea {
    /// Makes an area with the routines that do not depend on a kernel.
    pub(super) fn new(huge_pages: bool) -> Result<Self, TargetError> {
        let failed = |source: rustix::io::Errno| TargetError::Memory {
            what: "executable memory",
            source: io::Error::from(source),
        };
        // Twice the size, so that an aligned huge page lies inside.
        let flags = MapFlags::PRIVATE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping at an address that the kernel chooses aliases nothing.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), 2 * AREA, protection, flags) };
        let base = mapped.map_err(failed)?.cast::<u8>();
        let skip = base.align_offset(AREA);
        // SAFETY: `skip` is below AREA, so AREA bytes from there lie within the mapping of 2 *
        // AREA.
        let aligned = unsafe { base.add(skip) };
        let memory = NonNull::new(aligned).ok_or_else(|| failed(rustix::io::Errno::NOMEM))?;
        if huge_pages {
            // SAFETY: the range lies in the mapping made above; the advice changes no content.
            unsafe { madvise(memory.as_ptr().cast(), AREA, Advice::LinuxHugepage) }
                .map_err(failed)?;
        }
        // SAFETY: AREA bytes from `memory` are mapped and writable. Writing now faults the pages
        // in.
        unsafe { memory.as_ptr().write_bytes(routines::TRAP, AREA) };
        let mut area = Self { memory, used: 0, bursts: BTreeMap::new(), fixed: Fixed::default() };
        area.fixed = Fixed {
            clock: area.add("clock", routines::clock())?,
            unit: area.add("unit", routines::unit())?,
            issue: area.add("issue", routines::issue())?,
            dirty: area.add("dirty", routines::dirty())?,
            zeroed: area.add("zeroed", routines::zeroed())?,
        };
        Ok(area)
    }

    /// The routine for `work`, and the number of iterations to call it with. It is assembled at its
    /// first use.
    pub(super) fn routine(&mut self, work: &Work) -> Result<(*const u8, u64), TargetError> {
        let (offset, iterations) = match work {
            Work::Clock { links } => (self.fixed.clock, links / Work::CLOCK_STEP),
            Work::Unit { links } => (self.fixed.unit, links / Work::CLOCK_STEP),
            Work::Issue { instructions } => (self.fixed.issue, instructions / Work::ISSUE_STEP),
            Work::TouchUpper { clean: false } => (self.fixed.dirty, 0),
            Work::TouchUpper { clean: true } => (self.fixed.zeroed, 0),
            Work::Burst { kernel, instructions, operands } => {
                (self.burst(kernel, *instructions, *operands)?, 0)
            }
        };
        // SAFETY: every offset was returned by `add` and lies within the area.
        let routine = unsafe { self.memory.as_ptr().add(offset) };
        Ok((routine.cast_const(), u64::from(iterations.max(1))))
    }

    /// Whether more than half of the area is used.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.used > AREA / 2
    }

    fn burst(
        &mut self,
        kernel: &Kernel,
        count: u32,
        operands: Operands,
    ) -> Result<usize, TargetError> {
        let key = (kernel.name.clone(), count, operands);
        if let Some(&offset) = self.bursts.get(&key) {
            return Ok(offset);
        }
        let offset = self.add(&kernel.name, routines::burst(kernel, count, operands))?;
        self.bursts.insert(key, offset);
        Ok(offset)
    }

    /// Puts one routine after the others, and returns its offset.
    fn add(
        &mut self,
        name: &str,
        code: Result<Vec<u8>, AssemblyError>,
    ) -> Result<usize, TargetError> {
        let refused = |why: String| TargetError::Assembly { kernel: name.to_owned(), why };
        let offset = self.used.next_multiple_of(64);
        let code = code.map_err(|error| refused(error.to_string()))?;
        if offset + code.len() > AREA {
            return Err(refused(format!("{} bytes of code do not fit", code.len())));
        }
        self.protect(MprotectFlags::READ | MprotectFlags::WRITE)?;
        // SAFETY: `offset` is within the area (checked above).
        let place = unsafe { self.memory.as_ptr().add(offset) };
        // SAFETY: `code.len()` bytes from `place` are within the area (checked above). The area is
        // writable now, and no program executes it: programs run only while `Silicon` is borrowed
        // by `run`, and this is called before.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), place, code.len()) };
        self.protect(MprotectFlags::READ | MprotectFlags::EXEC)?;
        self.used = offset + code.len();
        Ok(offset)
    }

    fn protect(&self, flags: MprotectFlags) -> Result<(), TargetError> {
        // SAFETY: the range is this area's own mapping, and nothing is borrowed from it.
        unsafe { mprotect(self.memory.as_ptr().cast(), AREA, flags) }.map_err(|source| {
            TargetError::Memory { what: "executable memory", source: io::Error::from(source) }
        })
    }
}

impl Drop for CodeArea {
    fn drop(&mut self) {
        // SAFETY: the range lies within the mapping made in `new`, and all routines end with
        // `self`. An error would only leak address space.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), AREA) };
    }
}
