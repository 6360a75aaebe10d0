//! Atomics and fences of the protocols between threads: those of the standard library, and in
//! models ([loom](https://docs.rs/loom)) those that loom can reorder.

#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

#[cfg(all(test, loom))]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

/// The frequent side of an asymmetric fence: it orders what the compiler does, and the rare side
/// ([`crate::signals::fence_all`], membarrier(2)) makes the processor that runs this follow. The
/// two together are fences on both sides, which is what the model has.
///
/// Source: Linux, Documentation and membarrier(2): "smp_mb()" on the side of the caller pairs with
/// "barrier()" on the other.
#[inline(always)]
pub(crate) fn light_fence() {
    #[cfg(not(all(test, loom)))]
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    #[cfg(all(test, loom))]
    loom::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}
