//! The x86-64 side of the contract in [`crate::arch`].

pub(crate) mod cancel;
pub(crate) mod cpuid;
pub(crate) mod empty_function;
pub(crate) mod forward;
pub(crate) mod frame;
pub(crate) mod mutex;
pub(crate) mod return_address;
pub(crate) mod thread_data;
pub(crate) mod variadic;
pub(crate) mod vfork;

use std::ffi::{CStr, c_long};

pub(crate) use forward::forward;
pub(crate) use mutex::mutex_functions;
pub(crate) use return_address::with_return_address;
pub(crate) use variadic::gather;

/// System calls that concern the thread and that newer architectures lack.
pub(crate) const ABOUT_THE_THREAD: [c_long; 4] =
    [libc::SYS_fork, libc::SYS_pause, libc::SYS_iopl, libc::SYS_ioperm];

/// Those of them that fork.
pub(crate) const FORKS: [c_long; 2] = [libc::SYS_fork, libc::SYS_vfork];

/// The first version of glibc on x86-64.
pub(crate) const FIRST_VERSION: &CStr = c"GLIBC_2.2.5";
