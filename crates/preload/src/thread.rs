//! The data of each thread that assembly reads and writes without a call: a thread that may be
//! cancelled anywhere must not be unwound out of Rust's code.

use std::mem::offset_of;

pub(crate) use crate::arch::thread_data::{get, offset, set};

/// The layout of the data. All bytes are zero when a thread starts.
#[repr(C, align(8))]
struct Layout {
    /// The number of mutexes that the thread holds and whose owner the kernel records, without
    /// robust ones.
    held: u32,
    /// Whether the thread may be cancelled anywhere.
    asynchronous: u32,
    /// Whether the thread has disabled cancellation.
    uncancellable: u32,
    /// The number of the hooked function whose call's end is to be told.
    site: u32,
}

// Offsets of its fields, all of 32 bits.
pub(crate) const HELD: usize = offset_of!(Layout, held);
pub(crate) const ASYNCHRONOUS: usize = offset_of!(Layout, asynchronous);
pub(crate) const UNCANCELLABLE: usize = offset_of!(Layout, uncancellable);
pub(crate) const SITE: usize = offset_of!(Layout, site);
pub(crate) const BYTES: usize = size_of::<Layout>();
