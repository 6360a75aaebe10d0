//! Detects whether the calling thread may be in a signal handler. The handler may have interrupted
//! any code, also code that holds a lock or is in the middle of an allocation. Code that starts
//! threads, reads files or allocates checks this first ([`may_be_amid_anything`]).

use rustix::param::page_size;

use crate::arch::{FRAME_WORDS, begins_frame, call_with_frames};
use crate::signals::{self, Action};
use crate::{allocator, thread};

/// Maximum distance from the stack's end to a handler's frame: the maximum depth of calls within a
/// handler (bytes).
const DEEPEST: usize = 1 << 20;

/// Whether the calling thread may be in the middle of anything: in a signal handler, or in an
/// allocator of the program's that calls what moves.
pub(crate) fn may_be_amid_anything() -> bool {
    allocator::may_be_in_it() || may_be_in_handler()
}

/// Whether the calling thread may be in a signal handler.
///
/// A signal is blocked while its handler runs, unless the handler was installed to leave it
/// unblocked. If no signal is blocked and there is no such handler, the answer is no. Otherwise the
/// function searches the stack for the address that a handler returns to.
///
/// Not found: a handler that was installed for one signal only (`SA_RESETHAND`), if it was the only
/// handler.
///
/// # Cost
/// A system call for each kind of signal, some microseconds in all. For threads that block signals,
/// in a process with handlers, another one for each page of stack in use.
#[must_use]
pub fn may_be_in_handler() -> bool {
    // Starts above the frames of the called functions: they contain the same words, since they
    // search for them.
    call_with_frames!(may_be_above)
}

/// Whether each handler of the process runs with its own signal blocked: then a thread that is
/// found to be in none ([`may_be_in_handler`]) is in none as long as it blocks the same signals and
/// no other handler is installed.
#[must_use]
pub fn handlers_block_their_signals() -> bool {
    let mut handlers = signals::ALL.filter_map(Action::of).filter(Action::is_handler);
    handlers.all(|action| !action.lets_itself_through())
}

extern "C" fn may_be_above(frames: usize) -> bool {
    let (mut ends, mut may_be) = (Ends::default(), !signals::blocked().is_empty());
    for action in signals::ALL.filter_map(Action::of).filter(Action::is_handler) {
        may_be |= action.lets_itself_through();
        match action.end() {
            Some(end) => ends.add(end),
            None => return true,
        }
    }
    // Counts as found if there are too many addresses to compare, or if the stack cannot be read.
    may_be && !ends.is_empty() && (ends.is_full() || ends.are_above(frames).unwrap_or(true))
}

/// The addresses that handlers return to.
#[derive(Debug, Default)]
struct Ends([usize; 4]);

impl Ends {
    fn add(&mut self, end: usize) {
        if !self.0.contains(&end)
            && let Some(free) = self.0.iter_mut().find(|place| **place == 0)
        {
            *free = end;
        }
    }

    fn is_empty(&self) -> bool {
        self.0[0] == 0
    }

    /// The last place only marks that there may be more.
    fn is_full(&self) -> bool {
        self.0[3] != 0
    }

    /// Whether the stack, from `frames` upwards, contains one of them; `None` if it cannot be read.
    fn are_above(&self, frames: usize) -> Option<bool> {
        let mut buffer = [0_usize; 512];
        let mut at = frames;
        let mut limit = at.saturating_add(DEEPEST);
        // A thread's own data lies at the upper end of its stack; other data follows. The stack of
        // the first thread is followed by nothing.
        let own = thread::address();
        if own > at {
            limit = limit.min(own);
        }
        let mut has_read = false;
        while at < limit {
            // Not beyond the page's end, since the next page may not be mapped.
            let bytes = (page_size() - at % page_size()).min(limit - at);
            let read = signals::read_own(at, &mut buffer, bytes);
            if read < size_of::<usize>() {
                // The end of the stack.
                return has_read.then_some(false);
            }
            has_read = true;
            let words = &buffer[..read / size_of::<usize>()];
            let found = words.iter().zip((at..).step_by(size_of::<usize>()));
            let mut found = found.filter(|(word, _)| **word != 0 && self.0.contains(word));
            if found.any(|(_, place)| is_frame(place)) {
                return Some(true);
            }
            at += read;
        }
        Some(false)
    }
}

/// Whether the return address at `place` starts a frame that the kernel wrote for a handler.
fn is_frame(place: usize) -> bool {
    let mut words = [0; FRAME_WORDS];
    let bytes = size_of_val(&words);
    signals::read_own(place, &mut words, bytes) == bytes && begins_frame(&words)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::mem::MaybeUninit;

    use super::*;

    thread_local! {
        static FOUND: Cell<Option<bool>> = const { Cell::new(None) };
        static DEEP: Cell<u32> = const { Cell::new(0) };
    }

    extern "C" fn handle(_: libc::c_int) {
        FOUND.set(Some(deeper(DEEP.get())));
    }

    /// Searches with a number of additional frames, of one page each, on the stack.
    #[inline(never)]
    fn deeper(frames: u32) -> bool {
        let page = std::hint::black_box([frames; 1024]);
        let found = if frames == 0 { may_be_in_handler() } else { deeper(frames - 1) };
        found && std::hint::black_box(page)[0] == frames
    }

    /// Installs the handler for the signal, with these flags. Returns whether the handler detects
    /// itself.
    fn found_in_handler(signal: libc::c_int, flags: libc::c_int) -> Option<bool> {
        // SAFETY: all-zero bytes are a valid value.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = flags;
        // SAFETY: the action lives until the call returns.
        assert_eq!(unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) }, 0);
        FOUND.set(None);
        // SAFETY: the signal has a handler.
        assert_eq!(unsafe { libc::raise(signal) }, 0);
        FOUND.get()
    }

    fn block(signal: libc::c_int, how: libc::c_int) {
        // SAFETY: all-zero bytes are an empty set.
        let mut set: libc::sigset_t = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: a valid set, and an existing signal.
        unsafe { libc::sigaddset(&raw mut set, signal) };
        // SAFETY: the set lives until the call returns.
        let done = unsafe { libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut()) };
        assert_eq!(done, 0);
    }

    #[test]
    fn a_handler_is_found_wherever_it_runs_and_nowhere_else() {
        assert!(!may_be_in_handler());
        assert_eq!(found_in_handler(libc::SIGUSR2, 0), Some(true));
        for flags in [0, libc::SA_NODEFER, libc::SA_SIGINFO, libc::SA_RESETHAND] {
            for deep in [0, 40] {
                DEEP.set(deep);
                assert_eq!(found_in_handler(libc::SIGUSR1, flags), Some(true), "{flags}, {deep}");
                assert!(!may_be_in_handler(), "{flags}");
            }
        }
        // A signal stack.
        DEEP.set(4);
        let mut memory = vec![0_u8; 1 << 20];
        let stack =
            libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: memory.len() };
        // SAFETY: the memory lives until the stack is disabled below.
        assert_eq!(unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) }, 0);
        assert_eq!(found_in_handler(libc::SIGUSR1, libc::SA_ONSTACK), Some(true));
        let none = libc::stack_t { ss_flags: libc::SS_DISABLE, ..stack };
        // SAFETY: no handler runs on it.
        assert_eq!(unsafe { libc::sigaltstack(&raw const none, std::ptr::null_mut()) }, 0);
        drop(memory);
        // Copies of the return address lie on the stack, as in code that searches for it.
        let end = Action::of(libc::SIGUSR2).unwrap().end();
        let mut about = std::hint::black_box([end.unwrap(); 64]);
        assert!(!may_be_in_handler());
        std::hint::black_box(&mut about);
        // Another thread that blocks a signal with a handler is not in a handler for that reason
        // alone.
        let blocks = std::thread::spawn(|| {
            block(libc::SIGUSR1, libc::SIG_BLOCK);
            may_be_in_handler()
        });
        assert!(!blocks.join().unwrap());
    }
}
