//! The memory of this library. The program's allocator may be in the middle of anything, or call
//! what is hooked, so nothing here calls it.
//!
//! Pieces of up to 64 KiB have a power of two of bytes, and come from chunks that are never given
//! back; a list for each size has those that are free. Longer ones are mapped one by one.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::{Cell, UnsafeCell};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use dimmer_hook::{allow_migration, inhibit_migration};
use dimmer_runtime::of_thread;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

/// The shortest and the longest pieces of chunks, as powers of two.
const SHORTEST: u32 = 4;
const LONGEST: u32 = 16;
const SIZES: usize = (LONGEST - SHORTEST + 1) as usize;

/// Bytes of a chunk.
const CHUNK: usize = 1 << 18;

const PAGE: usize = 4096;

/// What a thread keeps. Its address names the thread, also in the child of a fork.
struct OfThread {
    /// The forks that it is making in signal handlers while it has the lock.
    inner_forks: Cell<u32>,
}

of_thread! {
    fn of_thread() -> OfThread, "dimmer_preload_heap";
}

#[cfg_attr(not(test), global_allocator)]
static HEAP: Heap = Heap::new();

struct Heap {
    /// The thread that has the lock; 0 for none. One word, so that a thread that waits does not
    /// look as if it had the lock to a signal handler that interrupts it.
    owner: AtomicUsize,
    pieces: UnsafeCell<Pieces>,
}

// SAFETY: only the thread in `owner` uses `pieces`.
unsafe impl Sync for Heap {}

struct Pieces {
    /// The first free piece of each size. The first word of a free piece has the address of the
    /// next.
    free: [*mut u8; SIZES],
    /// The unused part of the last chunk.
    next: usize,
    end: usize,
}

/// The size of the pieces for this layout, as its place in the lists; `None` if it is mapped.
fn size_of_piece(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(1 << SHORTEST).checked_next_power_of_two()?;
    let size = (bytes.trailing_zeros() - SHORTEST) as usize;
    (size < SIZES).then_some(size)
}

impl Heap {
    const fn new() -> Self {
        let pieces = Pieces { free: [null_mut(); SIZES], next: 0, end: 0 };
        Self { owner: AtomicUsize::new(0), pieces: UnsafeCell::new(pieces) }
    }

    /// Returns `None` in a signal handler that has interrupted this. Marks that it passes meanwhile
    /// do nothing.
    fn with<T>(&self, work: impl FnOnce(&mut Pieces) -> T) -> Option<T> {
        if self.is_own() {
            return None;
        }
        inhibit_migration();
        self.lock();
        // SAFETY: this thread has the lock.
        let result = work(unsafe { &mut *self.pieces.get() });
        self.unlock();
        allow_migration();
        Some(result)
    }

    /// Whether the calling thread has the lock.
    fn is_own(&self) -> bool {
        // Relaxed: only the thread itself writes its own name.
        self.owner.load(Ordering::Relaxed) == this_thread()
    }

    fn lock(&self) {
        let own = this_thread();
        // Ordering: Acquire pairs with the store in `unlock`.
        let take =
            || self.owner.compare_exchange_weak(0, own, Ordering::Acquire, Ordering::Relaxed);
        while take().is_err() {
            std::thread::yield_now();
        }
    }

    fn unlock(&self) {
        // Ordering: pairs with the exchange in `lock`: the pieces are as they were left.
        self.owner.store(0, Ordering::Release);
    }
}

/// The calling thread's name in [`Heap::owner`].
fn this_thread() -> usize {
    std::ptr::from_ref(of_thread()).addr()
}

impl Pieces {
    fn take(&mut self, size: usize) -> *mut u8 {
        let free = self.free[size];
        if !free.is_null() {
            // SAFETY: a free piece, which has the address of the next one.
            self.free[size] = unsafe { *free.cast::<*mut u8>() };
            return free;
        }
        let bytes = 1 << (size + SHORTEST as usize);
        if self.next.next_multiple_of(bytes) + bytes > self.end {
            let chunk = map(CHUNK);
            if chunk.is_null() {
                return chunk;
            }
            self.next = chunk.expose_provenance();
            self.end = self.next + CHUNK;
        }
        let piece = self.next.next_multiple_of(bytes);
        self.next = piece + bytes;
        std::ptr::with_exposed_provenance_mut(piece)
    }

    fn give_back(&mut self, piece: *mut u8, size: usize) {
        // SAFETY: a piece of at least a word that nothing uses any more.
        unsafe { *piece.cast::<*mut u8>() = self.free[size] };
        self.free[size] = piece;
    }
}

/// Maps memory; null if there is none.
fn map(bytes: usize) -> *mut u8 {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let mapped = unsafe { mmap_anonymous(null_mut(), bytes, access, MapFlags::PRIVATE) };
    mapped.map_or(null_mut(), <*mut _>::cast)
}

// SAFETY: pieces are as long as asked for, aligned to their length or to a page, and in use once.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match size_of_piece(layout) {
            // A mapping is as good as a piece of a chunk.
            Some(size) => self
                .with(|pieces| pieces.take(size))
                .unwrap_or_else(|| map(1 << (size + SHORTEST as usize))),
            None if layout.align() > PAGE => null_mut(),
            None => map(layout.size()),
        }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        match size_of_piece(layout) {
            // A piece that a signal handler could not give back is lost.
            Some(size) => _ = self.with(|pieces| pieces.give_back(piece, size)),
            // If this fails, the memory stays mapped.
            // SAFETY: a mapping of this length, which nothing uses any more.
            None => _ = unsafe { munmap(piece.cast(), layout.size()) },
        }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let Ok(new) = Layout::from_size_align(bytes, layout.align()) else { return null_mut() };
        let (old_size, new_size) = (size_of_piece(layout), size_of_piece(new));
        if old_size.is_none() && new_size.is_none() {
            // SAFETY: a mapping of this length, which its owner gives up for the new one.
            let moved = unsafe { mremap(piece.cast(), layout.size(), bytes, MremapFlags::MAYMOVE) };
            return moved.map_or(null_mut(), <*mut _>::cast);
        }
        if old_size == new_size {
            return piece;
        }
        // SAFETY: the layout is not empty, as the caller guarantees.
        let to = unsafe { self.alloc(new) };
        if !to.is_null() {
            // SAFETY: both are as long, and different.
            unsafe { std::ptr::copy_nonoverlapping(piece, to, layout.size().min(bytes)) };
            // SAFETY: the piece is no longer in use.
            unsafe { self.dealloc(piece, layout) };
        }
        to
    }
}

/// Prepares for forks, before any other part of this library does: in a child no thread is left
/// that would unlock the heap.
pub(crate) fn begin() {
    // SAFETY: the handlers wait for no lock of the program's.
    unsafe { libc::pthread_atfork(Some(lock), Some(unlock), Some(unlock)) };
}

/// If a signal handler forks, what it has interrupted goes on with the lock in the child, too.
extern "C" fn lock() {
    if HEAP.is_own() {
        let inner = &of_thread().inner_forks;
        inner.set(inner.get() + 1);
    } else {
        HEAP.lock();
    }
}

extern "C" fn unlock() {
    let inner = &of_thread().inner_forks;
    match inner.get().checked_sub(1) {
        Some(fewer) => inner.set(fewer),
        None => HEAP.unlock(),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_int;
    use std::sync::atomic::AtomicU8;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn pieces_keep_what_is_in_them_and_are_used_again() {
        let sizes = [1, 16, 17, 100, 4096, 40_000, 65_536, 65_537, 1_000_000];
        let layout = |bytes| Layout::from_size_align(bytes, 16).unwrap();
        // Of its own: other tests use the heap meanwhile.
        let heap = Heap::new();
        for bytes in sizes {
            // SAFETY: not empty.
            let mut piece = unsafe { heap.alloc(layout(bytes)) };
            assert!(!piece.is_null() && piece.addr().is_multiple_of(16), "{bytes}");
            // SAFETY: the piece has that many bytes.
            unsafe { piece.write_bytes(7, bytes) };
            let (mut length, mut kept) = (bytes, bytes);
            for other in sizes.into_iter().rev() {
                // SAFETY: the piece is of this length.
                piece = unsafe { heap.realloc(piece, layout(length), other) };
                kept = kept.min(other);
                // SAFETY: the piece has that many bytes, all written.
                let content = unsafe { std::slice::from_raw_parts(piece, kept) };
                assert!(content.iter().all(|byte| *byte == 7), "{bytes} {other}");
                length = other;
            }
            // SAFETY: the piece is of this length, and not used any more.
            unsafe { heap.dealloc(piece, layout(length)) };
            // SAFETY: not empty.
            let next = unsafe { heap.alloc(layout(length)) };
            assert_eq!(next, piece);
            // SAFETY: just taken.
            unsafe { heap.dealloc(next, layout(length)) };
        }
    }

    #[test]
    fn a_handler_that_interrupts_it_gets_memory_and_may_fork() {
        let layout = Layout::from_size_align(48, 8).unwrap();
        let inside = HEAP.with(|_| {
            // SAFETY: not empty.
            let piece = unsafe { HEAP.alloc(layout) };
            // SAFETY: just taken.
            unsafe { piece.write_bytes(1, 48) };
            lock();
            unlock();
            // SAFETY: not used any more.
            unsafe { HEAP.dealloc(piece, layout) };
            HEAP.is_own()
        });
        assert_eq!(inside, Some(true));
        assert!(!HEAP.is_own());
    }

    #[test]
    fn a_fork_in_a_fork_leaves_the_lock_to_the_first() {
        let [inside, between, after] = [lock, lock, unlock].map(|step| {
            step();
            HEAP.is_own()
        });
        unlock();
        assert_eq!([inside, between, after, HEAP.is_own()], [true, true, true, false]);
    }

    /// Whether the handler's fork had the lock; 2 before the handler ran.
    static HAD_LOCK: AtomicU8 = AtomicU8::new(2);

    extern "C" fn fork_in_handler(_: c_int) {
        lock();
        HAD_LOCK.store(HEAP.is_own().into(), Ordering::SeqCst);
        unlock();
    }

    /// Otherwise the child would have the lock of a thread that is not there.
    #[test]
    fn a_handler_that_forks_waits_for_the_lock_as_what_it_interrupts_does() {
        let handler: extern "C" fn(c_int) = fork_in_handler;
        // SAFETY: the handler does what may be done in one.
        unsafe { libc::signal(libc::SIGUSR1, handler as usize) };
        let (to, from) = mpsc::channel();
        std::thread::scope(|scope| {
            HEAP.with(|_| {
                scope.spawn(move || {
                    // SAFETY: needs nothing.
                    to.send(unsafe { libc::pthread_self() }).unwrap();
                    HEAP.with(|_| ());
                });
                let waiting = from.recv().unwrap();
                // It waits for the lock by now, or will do so after the handler.
                std::thread::sleep(Duration::from_millis(20));
                // SAFETY: the thread waits for this one.
                let sent = unsafe { libc::pthread_kill(waiting, libc::SIGUSR1) };
                assert_eq!(sent, 0);
                std::thread::sleep(Duration::from_millis(20));
                assert_ne!(HAD_LOCK.load(Ordering::SeqCst), 0);
            });
        });
        assert_eq!(HAD_LOCK.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn threads_get_pieces_of_their_own() {
        let layout = Layout::from_size_align(48, 8).unwrap();
        let work = |number: u8| {
            for _ in 0..2000 {
                // SAFETY: not empty.
                let piece = unsafe { HEAP.alloc(layout) };
                // SAFETY: the piece has that many bytes.
                unsafe { piece.write_bytes(number, 48) };
                std::hint::spin_loop();
                // SAFETY: as just written.
                let content = unsafe { std::slice::from_raw_parts(piece, 48) };
                assert!(content.iter().all(|byte| *byte == number));
                // SAFETY: not used any more.
                unsafe { HEAP.dealloc(piece, layout) };
            }
        };
        std::thread::scope(|scope| (1..5).for_each(|number| _ = scope.spawn(move || work(number))));
    }
}
