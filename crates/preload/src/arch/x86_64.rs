//! The x86-64 side of the contract in [`crate::arch`].

pub(crate) mod cancel;
pub(crate) mod cpuid;
pub(crate) mod empty_function;
pub(crate) mod forward;
pub(crate) mod mutex;
pub(crate) mod return_address;
pub(crate) mod thread_data;
pub(crate) mod variadic;
pub(crate) mod vfork;

use std::ffi::CStr;

pub(crate) use forward::{comes_home, restore_arguments, save_arguments, starts};
pub(crate) use mutex::mutex_functions;
pub(crate) use return_address::with_return_address;
pub(crate) use variadic::gathers;

/// The first version of glibc on x86-64.
pub(crate) const FIRST_VERSION: &CStr = c"GLIBC_2.2.5";
