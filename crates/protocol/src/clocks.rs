//! The board of a program whose clocks the server moderates: one word for each thread that has a
//! request. The client writes it and rings by a packet. The server reads it, and writes until when
//! the client may take it for alive.

use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::Shareable;
use crate::table::lasts;
use crate::ticks;

/// Maximum number of threads of a program with a request at once.
pub const CLOCKS: usize = 512;

/// The packet by which a client rings.
pub const BELL: [u8; 1] = [1];

/// The file beside a server's socket that is there while the server moderates clocks. Programs look
/// for it first: to connect would start a server by socket activation.
#[must_use]
pub fn clocks_mark(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".clocks");
    path.into()
}

/// The board. Zeros are a board without requests.
///
/// | bits of a word | |
/// |---|---|
/// | 63..32 | the thread; 0: no request |
/// | 31..8 | the CPU that executes it |
/// | 7..0 | the number of the request (`dimmer_pace::Request`) |
#[derive(Debug)]
#[repr(C)]
pub struct Clocks {
    /// The server lives until then (ticks), as far as is known.
    lease: AtomicU64,
    words: [AtomicU64; CLOCKS],
}

// SAFETY: it consists of atomic integers only.
unsafe impl Shareable for Clocks {
    const NAME: &CStr = c"dimmer-clocks";
    const IS_WRITTEN: bool = true;
    const AT_ONCE: usize = size_of::<Self>();
}

/// A request as it is on a board. A client may have written anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OnBoard {
    /// The thread.
    pub thread: u32,
    /// The CPU.
    pub cpu: u32,
    /// The number of the request.
    pub number: u8,
}

impl Clocks {
    /// Has the client take the server for alive until then (ticks).
    pub fn renew(&self, until: u64) {
        self.lease.store(until, Ordering::Relaxed);
    }

    /// Whether the server has lately been alive. If not, the client finds out by a packet.
    ///
    /// # Cost
    /// A load, and reading the time-stamp counter.
    #[must_use]
    pub fn is_attended(&self) -> bool {
        lasts(self.lease.load(Ordering::Relaxed), ticks())
    }

    /// Writes a word; `None` is no request. A place that is none has no effect.
    pub fn set(&self, place: usize, request: Option<OnBoard>) {
        let word = request.map_or(0, |own| {
            u64::from(own.thread) << 32
                | u64::from(own.cpu & 0xff_ffff) << 8
                | u64::from(own.number)
        });
        if let Some(own) = self.words.get(place) {
            own.store(word, Ordering::Relaxed);
        }
    }

    /// The request at this place, if there is one.
    #[must_use]
    pub fn get(&self, place: usize) -> Option<OnBoard> {
        let word = self.words.get(place)?.load(Ordering::Relaxed);
        let part = |at: u32, mask: u64| u32::try_from(word >> at & mask).unwrap_or_default();
        let number = u8::try_from(word & 0xff).unwrap_or_default();
        let (thread, cpu) = (part(32, 0xffff_ffff), part(8, 0xff_ffff));
        (thread != 0).then_some(OnBoard { thread, cpu, number })
    }

    /// All requests with their places.
    pub fn all(&self) -> impl Iterator<Item = (usize, OnBoard)> + '_ {
        (0..CLOCKS).filter_map(|place| Some((place, self.get(place)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Owned;

    #[test]
    fn what_is_written_is_read() {
        let board = Owned::<Clocks>::new().unwrap();
        let own = OnBoard { thread: u32::MAX, cpu: 0x00ff_fffe, number: 103 };
        board.set(7, Some(own));
        board.set(CLOCKS, Some(own));
        assert_eq!(board.all().collect::<Vec<_>>(), [(7, own)]);
        board.set(7, None);
        assert_eq!(board.all().count(), 0);
    }

    #[test]
    fn a_board_is_attended_as_long_as_the_lease_lasts() {
        let board = Owned::<Clocks>::new().unwrap();
        assert!(!board.is_attended());
        board.renew(ticks() + (1 << 33));
        assert!(board.is_attended());
        // The counter has started again, or the lease is over.
        for until in [u64::MAX, ticks()] {
            board.renew(until);
            assert!(!board.is_attended());
        }
    }
}
