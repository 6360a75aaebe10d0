//! Files of memory that are passed to another process, and their mappings.
//!
//! A file is sealed at its length before it is passed, and the receiver checks that. A file can
//! therefore not shrink under its mapping, which would kill the process. Nor does a lack of memory
//! for its pages kill a process: the pages that the server writes in any case are allocated when
//! the file is made, and a process asks for the pages of sites before it touches them
//! ([`Table::has_memory`]).
//!
//! The limit of that: a client can punch holes into a table, which no seal prevents as long as the
//! client may write. The server then allocates pages where it reads. If the kernel refuses that
//! (`vm.overcommit_memory = 2` at its limit), SIGBUS ends the server. And the server frees the
//! sites of a client that has closed its connection; until that client has another table, it is
//! the one that allocates pages where it counts.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};

use crate::table::{LeasePage, Table};

/// Why memory is not available, or is not as expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The system refuses.
    #[error("cannot {what} shared memory")]
    System {
        /// The operation that failed, as a verb.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// It has another length, or is not sealed at it.
    #[error("what was passed is no file of memory of the length agreed on")]
    Foreign,
}

/// A type that may lie in shared memory.
///
/// # Safety
/// Any bytes are a valid value of the type, and all access to it is atomic.
pub unsafe trait Shareable {
    /// The name of its files; only debuggers and /proc show it.
    const NAME: &CStr;
    /// Whether a process that receives a file may write it.
    const IS_WRITTEN: bool;
    /// How many of its first bytes are allocated when the file is made.
    const AT_ONCE: usize;
}

// SAFETY: it consists of atomic integers only.
unsafe impl Shareable for LeasePage {
    const NAME: &CStr = c"dimmer-lease";
    const IS_WRITTEN: bool = false;
    const AT_ONCE: usize = size_of::<Self>();
}

// SAFETY: it consists of atomic integers only.
unsafe impl Shareable for Table {
    const NAME: &CStr = c"dimmer-table";
    const IS_WRITTEN: bool = true;
    // Most clients have few sites.
    const AT_ONCE: usize = std::mem::offset_of!(Self, sites);
}

/// Mapped memory.
pub struct Mapped<T: Shareable>(NonNull<T>);

// SAFETY: all access to its contents is atomic.
unsafe impl<T: Shareable> Send for Mapped<T> {}
// SAFETY: all access to its contents is atomic.
unsafe impl<T: Shareable> Sync for Mapped<T> {}

impl<T: Shareable> fmt::Debug for Mapped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mapped").field(&self.0).finish()
    }
}

impl<T: Shareable> Deref for Mapped<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the memory is mapped until `self` is dropped, and any bytes are a valid value.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Shareable> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: mapped by this type, and no borrow of it is left.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), size_of::<T>()) };
    }
}

impl<T: Shareable> Mapped<T> {
    /// Maps a file that was passed: readable, and also writable if `T::IS_WRITTEN`.
    ///
    /// # Errors
    /// If the file is of another kind, or cannot be mapped.
    pub fn new(file: BorrowedFd<'_>) -> Result<Self, MemoryError> {
        check::<T>(file)?;
        Self::map(
            file,
            if T::IS_WRITTEN { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ },
        )
    }

    /// Keeps it mapped for the rest of the process.
    fn leak(self) -> &'static T {
        let memory = std::mem::ManuallyDrop::new(self);
        // SAFETY: mapped for the rest of the process, and any bytes are a valid value.
        unsafe { memory.0.as_ref() }
    }

    fn map(file: BorrowedFd<'_>, access: ProtFlags) -> Result<Self, MemoryError> {
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let memory = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                size_of::<T>(),
                access,
                MapFlags::SHARED,
                file,
                0,
            )
        };
        let memory = memory.map_err(system("map"))?;
        NonNull::new(memory.cast()).map(Self).ok_or(MemoryError::Foreign)
    }
}

/// Memory made by this process, with the file to pass.
#[derive(Debug)]
pub struct Owned<T: Shareable> {
    memory: Mapped<T>,
    file: OwnedFd,
}

impl<T: Shareable> Owned<T> {
    /// Makes a file of zeros and maps it. Allocates the memory that is always used. The rest is
    /// allocated when it is touched, page by page.
    ///
    /// # Errors
    /// If the system refuses, for example because there is no memory for it.
    pub fn new() -> Result<Self, MemoryError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(T::NAME, flags).map_err(system("make"))?;
        rustix::fs::ftruncate(&file, size_of::<T>() as u64).map_err(system("lengthen"))?;
        // If there is no memory, this returns an error here, instead of a signal when a page is
        // touched.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, T::AT_ONCE as u64)
            .map_err(system("find memory for"))?;
        let memory = Mapped::map(file.as_fd(), ProtFlags::READ | ProtFlags::WRITE)?;
        // An existing mapping stays writable (Linux since 5.1).
        let others = if T::IS_WRITTEN { SealFlags::empty() } else { SealFlags::FUTURE_WRITE };
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | others;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(system("seal"))?;
        Ok(Self { memory, file })
    }
}

impl<T: Shareable> Owned<T> {
    /// Returns the memory alone, to be called once the file was passed.
    #[must_use]
    pub fn into_memory(self) -> Mapped<T> {
        self.memory
    }
}

impl<T: Shareable> Deref for Owned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.memory
    }
}

impl<T: Shareable> AsFd for Owned<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Table {
    /// Allocates the memory for these sites and returns whether there is any. The system may kill a
    /// process that touches sites without memory. Linux before 5.14 cannot report it; this then
    /// returns true.
    ///
    /// # Cost
    /// A system call.
    #[must_use]
    pub fn has_memory(&self, sites: Range<usize>) -> bool {
        self.take_memory(sites).is_ok()
    }

    /// Frees the memory of decisions and sites for all processes that have mapped this table: they
    /// are zero from now on. The server calls it after [`Table::leave`], because that memory may
    /// count as the server's until the client has unmapped it. The first page stays, from which the
    /// client sees that the server has left.
    ///
    /// # Cost
    /// A system call.
    pub fn free(&self) {
        let start = std::ptr::from_ref(&self.decisions).cast_mut().cast();
        let length = size_of::<Self>() - std::mem::offset_of!(Self, decisions);
        // If the kernel refuses, the memory stays until the client unmaps it.
        // SAFETY: the range lies in this table, and starts and ends with a page. All access to it
        // is atomic, and zeros are valid values.
        let _ = unsafe { rustix::mm::madvise(start, length, Advice::LinuxRemove) };
    }

    fn take_memory(&self, sites: Range<usize>) -> Result<(), Errno> {
        const PAGE: usize = 4096;
        let Some(sites) = self.sites.get(sites).filter(|sites| !sites.is_empty()) else {
            return Ok(());
        };
        let Range { start, end } = sites.as_ptr_range();
        let before = start.addr() % PAGE;
        let start = start.cast_mut().cast::<std::ffi::c_void>().wrapping_byte_sub(before);
        // SAFETY: the whole range lies in this table, which starts at the start of a page.
        // Allocating pages does not change their contents.
        let taken = unsafe {
            rustix::mm::madvise(start, end.addr() - start.addr(), Advice::LinuxPopulateWrite)
        };
        if taken == Err(Errno::INVAL) { Ok(()) } else { taken }
    }
}

/// This process's own memory at a fixed address. A server's memory can be mapped over it, and
/// another server's later. It is never freed.
#[derive(Debug)]
pub struct Reservation<T: Shareable + 'static>(&'static T);

impl<T: Shareable> Reservation<T> {
    /// Makes a reservation of zeros that no other process sees.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn new() -> Result<Self, MemoryError> {
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let memory = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                size_of::<T>(),
                access(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let memory = memory.map_err(system("map"))?;
        // SAFETY: any bytes are a valid value, and the mapping stays.
        Ok(Self(unsafe { &*memory.cast::<T>() }))
    }

    /// The memory that is mapped now.
    #[must_use]
    #[inline]
    pub const fn get(&self) -> &'static T {
        self.0
    }

    /// Moves this mapping to the address of `other`.
    fn replace(self, other: &Self) -> Result<(), MemoryError> {
        let [from, to] = [&self, other].map(|one| std::ptr::from_ref(one.0).cast_mut().cast());
        let (length, flags) = (size_of::<T>(), MremapFlags::MAYMOVE);
        // SAFETY: the mapping of `other` is replaced by one of the same length, and nothing else
        // refers to this one.
        let moved = unsafe { rustix::mm::mremap_fixed(from, length, length, flags, to) };
        if let Err(error) = moved {
            // The old mapping may be gone. Readers still need mapped memory there.
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
            // SAFETY: the address belongs to this type, and any bytes are a valid value.
            let _ = unsafe { rustix::mm::mmap_anonymous(to, length, access(), flags) };
            return Err(system("map")(error));
        }
        Ok(())
    }
}

impl Reservation<LeasePage> {
    /// Maps a server's lease page at this address.
    ///
    /// # Errors
    /// If the file is of another kind, or cannot be mapped; the previous page then stays.
    pub fn adopt(&self, file: BorrowedFd<'_>) -> Result<(), MemoryError> {
        let new = Mapped::<LeasePage>::new(file)?;
        if !new.is_known() {
            return Err(MemoryError::Foreign);
        }
        Self(new.leak()).replace(self)
    }
}

impl Reservation<Table> {
    /// Maps a server's table at this address, with the sites of `names` and the sums of the
    /// previous table, whose server may have freed the memory of its sites. What other threads add
    /// to sums at that moment is lost.
    ///
    /// # Errors
    /// If the file is of another kind, or cannot be mapped; the previous table then stays.
    pub fn adopt(&self, file: BorrowedFd<'_>, names: &Table) -> Result<(), MemoryError> {
        let new = Mapped::<Table>::new(file)?;
        if !new.is_known() {
            return Err(MemoryError::Foreign);
        }
        new.take_memory(0..names.length()).map_err(system("find memory for"))?;
        new.take_over(names, self.0);
        Self(new.leak()).replace(self)
    }

    /// Maps a table that no other process sees at this address, with the sites of `names`, the sums
    /// of the previous table and no decision to move anything. A child of fork(2) uses it in place
    /// of its parent's. Async-signal-safe.
    ///
    /// # Errors
    /// If it cannot be mapped.
    pub fn renounce(&self, names: &Table) -> Result<(), MemoryError> {
        let new = Self::new()?;
        new.0.take_over(names, self.0);
        new.replace(self)
    }
}

/// Access for reading and writing.
fn access() -> ProtFlags {
    ProtFlags::READ | ProtFlags::WRITE
}

/// Checks that a file has the length of `T` and cannot shrink.
fn check<T: Shareable>(file: BorrowedFd<'_>) -> Result<(), MemoryError> {
    let status = rustix::fs::fstat(file).map_err(system("examine"))?;
    // Other files have no seals.
    let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| MemoryError::Foreign)?;
    if u64::try_from(status.st_size) != Ok(size_of::<T>() as u64)
        || !seals.contains(SealFlags::SHRINK)
    {
        return Err(MemoryError::Foreign);
    }
    Ok(())
}

fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> MemoryError {
    move |error| MemoryError::System { what, source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{DELEGATE, LEASE, MIGRATE, STAY};
    use std::sync::atomic::Ordering;

    #[test]
    fn what_one_side_writes_the_other_sees() {
        let server = Owned::<Table>::new().unwrap();
        server.write();
        let client = Mapped::<Table>::new(server.as_fd()).unwrap();
        assert!(client.is_known() && !client.is_left());
        assert_eq!(client.add(b"parse", 7), Some(0));
        assert_eq!(client.add(b"codec.c:12", 12), Some(1));
        client.sites[1].add_calls(300);
        client.sites[1].add_stayed(4000);
        assert_eq!(server.length(), 2);
        let (name, length) = server.sites[1].name();
        assert_eq!((&name[..length], server.sites[1].line()), (&b"codec.c:12"[..], 12));
        let sums = server.sites[1].sums();
        assert_eq!((sums.calls, sums.stayed, sums.stayed_ticks), (300, 1, 4000));
        server.decisions[1].store(MIGRATE, Ordering::Relaxed);
        assert_eq!(client.decisions[1].load(Ordering::Relaxed), MIGRATE);
        server.leave();
        assert_eq!(client.decisions[1].load(Ordering::Relaxed), STAY);
        assert!(client.is_left());
    }

    #[test]
    fn clients_cannot_write_the_lease_page() {
        let server = Owned::<LeasePage>::new().unwrap();
        server.write(&[3, 2]);
        server.renew(500);
        server.dedicate(9);
        let client = Mapped::<LeasePage>::new(server.as_fd()).unwrap();
        assert!(client.is_known() && client.holds(499) && !client.holds(500));
        assert_eq!((client.cores().collect::<Vec<_>>(), client.dedicated()), (vec![3, 2], 2));
        assert!(
            Mapped::<LeasePage>::map(server.as_fd(), ProtFlags::READ | ProtFlags::WRITE).is_err()
        );
        assert!(LEASE.as_millis() == 100);
        // The counter has started again: the server of this lease may have ended long ago.
        server.renew(500 + (1 << 33));
        assert!(client.holds(500) && client.holds(499 + (1 << 33)) && !client.holds(499));
    }

    #[test]
    fn what_is_not_agreed_on_is_refused() {
        let table = Owned::<Table>::new().unwrap();
        assert!(matches!(Mapped::<LeasePage>::new(table.as_fd()), Err(MemoryError::Foreign)));
        // Not sealed, so it may shrink.
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(c"test", flags).unwrap();
        rustix::fs::ftruncate(&file, size_of::<Table>() as u64).unwrap();
        assert!(matches!(Mapped::<Table>::new(file.as_fd()), Err(MemoryError::Foreign)));
        // Not a table of this version.
        let reservation = Reservation::<Table>::new().unwrap();
        let names = reservation.get();
        assert!(matches!(reservation.adopt(table.as_fd(), names), Err(MemoryError::Foreign)));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(Mapped::<Table>::new(null.as_fd()).is_err());
    }

    #[test]
    fn sites_keep_their_address_from_server_to_server() {
        let [reservation, names] = [(); 2].map(|()| Reservation::<Table>::new().unwrap());
        let (table, names) = (reservation.get(), names.get());
        assert_eq!([table.add(b"parse", 7), names.add(b"parse", 7)], [Some(0); 2]);
        table.sites[0].add_moved(9);
        table.head.client.add_done(5);
        for _ in 0..2 {
            let server = Owned::<Table>::new().unwrap();
            server.write();
            reservation.adopt(server.as_fd(), names).unwrap();
            assert_eq!((server.length(), server.sites[0].sums().moved_ticks), (1, 9));
            assert_eq!(server.head.client.done(), Some(5));
            server.decisions[0].store(DELEGATE, Ordering::Relaxed);
            assert_eq!(table.decisions[0].load(Ordering::Relaxed), DELEGATE);
        }
        reservation.renounce(names).unwrap();
        assert_eq!((table.length(), table.decisions[0].load(Ordering::Relaxed)), (1, STAY));
        assert!(!table.is_known());
    }

    #[test]
    fn a_table_that_was_left_costs_a_page_and_its_client_keeps_the_names() {
        let [reservation, names] = [(); 2].map(|()| Reservation::<Table>::new().unwrap());
        let (table, names) = (reservation.get(), names.get());
        names.add(b"parse", 7);
        let [left, next] = [(); 2].map(|()| {
            let server = Owned::<Table>::new().unwrap();
            server.write();
            reservation.adopt(server.as_fd(), names).unwrap();
            server.decisions[0].store(DELEGATE, Ordering::Relaxed);
            assert!((1..crate::SITES).all(|_| server.add(b"more", 1).is_some()));
            server.leave();
            server.free();
            server
        });
        let taken = |table: &Owned<Table>| rustix::fs::fstat(table).unwrap().st_blocks * 512;
        // The second table was adopted, which reads the sums of the first one.
        assert_eq!((taken(&left), taken(&next)), (8192, 4096));
        assert!(table.is_left() && table.length() == crate::SITES);
        assert_eq!(table.decisions[0].load(Ordering::Relaxed), STAY);
        let server = Owned::<Table>::new().unwrap();
        server.write();
        reservation.adopt(server.as_fd(), names).unwrap();
        let (name, length) = server.sites[0].name();
        assert_eq!((&name[..length], server.length()), (&b"parse"[..], 1));
    }

    #[test]
    fn a_table_that_lies_is_read_within_its_bounds() {
        let mut chance = fastrand::Rng::with_seed(7);
        let table = Owned::<Table>::new().unwrap();
        let words = size_of::<Table>() / 8;
        for _ in 0..20 {
            let start = std::ptr::from_ref::<Table>(&table).cast::<std::sync::atomic::AtomicU64>();
            // SAFETY: the table has this length, is aligned, and consists of atomics.
            let all = unsafe { std::slice::from_raw_parts(start, words) };
            for word in all {
                word.store(chance.u64(..), Ordering::Relaxed);
            }
            assert!(table.length() <= crate::SITES);
            let mut before = crate::Sums::default();
            for site in &table.sites {
                let (name, length) = site.name();
                assert!(length <= name.len());
                let sums = site.sums();
                let _ = sums.since(&before);
                before = sums;
            }
            let _ = (table.is_known(), table.is_left(), table.add(b"more", 1));
        }
    }

    #[test]
    #[expect(clippy::print_stdout, reason = "a test that cannot run says so")]
    fn memory_is_taken_for_what_is_used_and_asked_for_before_it_is_touched() {
        let table = Owned::<Table>::new().unwrap();
        let taken = |file: BorrowedFd<'_>| rustix::fs::fstat(file).unwrap().st_blocks * 512;
        assert_eq!(taken(table.as_fd()), 8192);
        assert!(table.has_memory(3..20));
        assert!(table.has_memory(5..5) && table.has_memory(crate::SITES..crate::SITES + 1));
        if taken(table.as_fd()) == 8192 {
            println!("SKIPPED: this kernel does not tell whether there is memory");
            return;
        }
        assert_eq!(taken(table.as_fd()), 16_384);
        // Pages that cannot be allocated: here because the file has become shorter.
        let file = rustix::fs::memfd_create(c"test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, size_of::<Table>() as u64).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let table = Mapped::<Table>::map(file.as_fd(), access).unwrap();
        rustix::fs::ftruncate(&file, 12_288).unwrap();
        assert!(table.has_memory(0..16) && !table.has_memory(0..17) && !table.has_memory(16..17));
    }

    #[test]
    fn one_lease_page_comes_after_another_at_the_same_place() {
        let reservation = Reservation::<LeasePage>::new().unwrap();
        let lease_page = reservation.get();
        assert!(
            !lease_page.holds(0)
                && lease_page.dedicated() == 0
                && lease_page.cores().next().is_none()
        );
        for core in [3, 5] {
            let server = Owned::<LeasePage>::new().unwrap();
            server.write(&[core]);
            server.renew(500);
            reservation.adopt(server.as_fd()).unwrap();
            assert!(lease_page.holds(499) && lease_page.cores().eq([core]));
            server.renew(0);
            assert!(!lease_page.holds(499));
        }
        let empty = Owned::<LeasePage>::new().unwrap();
        assert!(matches!(reservation.adopt(empty.as_fd()), Err(MemoryError::Foreign)));
    }

    #[test]
    fn a_full_table_takes_no_more() {
        let table = Reservation::<Table>::new().unwrap().get();
        let long = [b'x'; 200];
        for place in 0..crate::SITES {
            assert_eq!(table.add(&long, 1), Some(place));
        }
        assert_eq!(table.add(b"more", 1), None);
        assert_eq!(table.sites[3].name().1, crate::NAME_BYTES);
    }
}
