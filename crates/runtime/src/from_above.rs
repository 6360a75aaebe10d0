//! Functions that upper modules leave with lower ones, which call them without knowing them: at a
//! thread's end, at a fork, and when a worker has nothing to do.

use std::sync::atomic::{AtomicPtr, Ordering};

/// One function for each of `N` places, which are called in that order.
#[derive(Debug)]
pub(crate) struct FromAbove<const N: usize>([AtomicPtr<()>; N]);

impl<const N: usize> FromAbove<N> {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicPtr::new(std::ptr::null_mut()) }; N])
    }

    /// Leaves a function for a place. Each place has one function; leaving it again costs a load.
    /// Async-signal-safe.
    #[inline]
    pub(crate) fn set<const PLACE: usize>(&self, function: fn()) {
        const { assert!(PLACE < N) };
        if let Some(place) = self.0.get(PLACE)
            && place.load(Ordering::Relaxed) != function as *mut ()
        {
            // Relaxed: the function is code, which was there before.
            place.store(function as *mut (), Ordering::Relaxed);
        }
    }

    /// Calls the functions that were left.
    pub(crate) fn call(&self) {
        for place in &self.0 {
            let function = place.load(Ordering::Relaxed);
            if !function.is_null() {
                // SAFETY: `set` has stored a function of this type.
                let function = unsafe { std::mem::transmute::<*mut (), fn()>(function) };
                function();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    static SEEN: AtomicU32 = AtomicU32::new(0);

    fn first() {
        SEEN.store(SEEN.load(Ordering::Relaxed) * 10 + 1, Ordering::Relaxed);
    }

    fn second() {
        SEEN.store(SEEN.load(Ordering::Relaxed) * 10 + 2, Ordering::Relaxed);
    }

    #[test]
    fn functions_are_called_in_the_order_of_their_places() {
        let functions = FromAbove::<3>::new();
        functions.call();
        functions.set::<2>(second);
        functions.set::<0>(first);
        functions.set::<0>(first);
        functions.call();
        assert_eq!(SEEN.load(Ordering::Relaxed), 12);
    }
}
