//! Whether threads can migrate, and why not.

use std::io;

use dimmer_host::migration;

/// Why a thread cannot migrate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CannotMigrate {
    /// Only the kernel can change the FS base, which holds the address of thread-local storage.
    #[error("this kernel or processor does not let programs change the FS base (fsgsbase)")]
    ThreadPointer,
    /// The processor keeps a second copy of the return addresses, which would not migrate.
    #[error("shadow stacks are on in this process")]
    ShadowStack,
    /// Valgrind runs the process.
    #[error("Valgrind runs this process, and knows no threads that migrate")]
    Valgrind,
    /// The thread holds a robust mutex, which the kernel would pass on when the thread's home ends.
    #[error("this thread holds a robust mutex")]
    RobustMutex,
    /// The thread is a worker or is away already, or more threads exist than lanes.
    #[error("this thread runs on a dedicated core already, or too many threads use them")]
    NoLane,
    /// All workers have ended, or the process is a child of the one that started them.
    #[error("no dedicated core has a worker")]
    NoWorker,
    /// There is no memory for the trampoline stack.
    #[error("cannot map a stack")]
    System(#[from] io::Error),
}

/// Checks whether this machine and process allow threads to migrate.
///
/// # Errors
/// Why they do not.
pub fn check() -> Result<(), CannotMigrate> {
    if migration::is_under_valgrind() {
        return Err(CannotMigrate::Valgrind);
    }
    if !migration::can_change_thread_pointer() {
        return Err(CannotMigrate::ThreadPointer);
    }
    if migration::has_shadow_stack() {
        return Err(CannotMigrate::ShadowStack);
    }
    Ok(())
}
