//! A worker's side of a migration: it runs the thread that its lane holds.

use crate::arch::{Message, switch};
use crate::lane::{IDLE, Lane};
use crate::shared::Shared;

/// A message without content.
pub(crate) const NOTHING: Message = [std::ptr::null(); 2];

/// Resumes the thread in a lane, and runs it until it leaves.
///
/// # Safety
/// The lane's word is [`crate::lane::MIGRATE`], and the caller is the lane's worker.
#[inline]
pub(crate) unsafe fn carry(worker: &Shared, lane: &Lane) {
    let thread = lane.thread();
    // SAFETY: the caller guarantees that the lane holds a thread.
    let thread_pointer = unsafe { (*thread).thread_pointer };
    let own = &worker.own;
    #[cfg(dimmer_tsan)]
    let storage = own.storage();
    // SAFETY: the thread's code runs here now. The worker's own code uses no thread-local storage
    // until it settles.
    unsafe { own.put_in_force(thread_pointer) };
    let message = [(&raw const *lane).cast(), (&raw const *own).cast()];
    // SAFETY: the thread was handed over once, and no other kernel thread runs on its stack.
    unsafe { switch(own.context.as_ptr(), lane.context(), message) };
    #[cfg(dimmer_tsan)]
    own.settle_at(storage);
    lane.word.post(IDLE);
}
