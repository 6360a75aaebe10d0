//! Bursts and chains that ordinary code can call, for experiments with programs instead of windows
//! of work.

use super::code::CodeArea;
use crate::arch::call;
use crate::arch::operands::OperandPage;
use crate::kernel::Kernel;
use crate::program::Work;
use crate::target::TargetError;

/// A burst of a kernel's instructions, ready to run with its operands.
#[derive(Debug)]
pub struct Callable {
    // The memory that holds `routine`.
    _code: CodeArea,
    operands: Box<OperandPage>,
    routine: *const u8,
    iterations: u64,
}

// SAFETY: the routine and the operands that it reads never change after `new`.
unsafe impl Send for Callable {}
// SAFETY: the routine and its operands never change after `new`, and each thread has its own
// registers.
unsafe impl Sync for Callable {}

impl Callable {
    /// Assembles `instructions` of a kernel that the processor and the system provide
    /// ([`crate::target::Target::lacks`]).
    ///
    /// # Errors
    /// [`TargetError::Memory`], or the assembler's error.
    pub fn new(kernel: &std::sync::Arc<Kernel>, instructions: u32) -> Result<Self, TargetError> {
        Self::of(&Work::burst(kernel, instructions))
    }

    /// Assembles a chain of this many multiplications, each of which waits for the one before.
    ///
    /// # Errors
    /// [`TargetError::Memory`], or the assembler's error.
    pub(crate) fn chain(links: u32) -> Result<Self, TargetError> {
        Self::of(&Work::clock(links))
    }

    fn of(work: &Work) -> Result<Self, TargetError> {
        let mut code = CodeArea::new(false)?;
        let (routine, iterations) = code.routine(work)?;
        Ok(Self { _code: code, operands: OperandPage::new(), routine, iterations })
    }

    /// Executes the burst.
    pub fn call(&self) {
        // SAFETY: the routine and its operands live as long as `self`.
        unsafe { call(self.routine, self.operands.as_ptr(), self.iterations) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalar_bursts_of_any_length_come_back() {
        let kernel = std::sync::Arc::new(crate::kernel::stand_in());
        for instructions in [1, 100, 5000] {
            let burst = Callable::new(&kernel, instructions).unwrap();
            (0..3).for_each(|_| burst.call());
        }
    }
}
