//! This process as a client of a policy server: the sites' decisions and sums lie in memory that
//! the server sees, too.
//!
//! The memory exists from the start and keeps its address. A server's memory is mapped over it when
//! a server is found, so the sites need not change. There is no thread for that: a thread that
//! enters a region on the slow path maintains the connection now and then ([`tend`]), and never
//! waits. A decision to move work holds while the server renews its lease.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use dimmer_processor::units::CpuId;
use dimmer_protocol::{Client, Hello, LeasePage, MemoryFiles, Reservation, Table};
use rustix::fs::FileType;

use crate::adding::Adding;
use crate::fork::{self, IN_CHILD, LEAVES_SERVER};
use crate::phase::{FIRST, Phase};
use crate::thread::Inside;
use crate::uncancelled::Uncancelled;

/// Interval between two checks of the connection, in ticks: about 30 to 150 ms.
const LOOK: u64 = 1 << 27;

/// The memory shared with a server; `None` if there is no memory for it.
static KNOWN: OnceLock<Option<Known>> = OnceLock::new();

/// The state of the connection.
#[cfg(not(all(test, loom)))]
static PHASE: Phase = Phase::new();
#[cfg(all(test, loom))]
static PHASE: std::sync::LazyLock<Phase> = std::sync::LazyLock::new(Phase::new);

/// There is no server.
const ALONE: u64 = FIRST;
/// A server was asked, and has not answered.
const ASKED: u64 = 1;
/// A server decides.
const SERVED: u64 = 2;
/// A thread is checking the connection.
const BUSY: u64 = 3;

/// The connection's file descriptor, and the inode of its socket. The inode distinguishes it from
/// another file that the program may have under the same number by now.
static SOCKET: AtomicI32 = AtomicI32::new(-1);
static SOCKET_INODE: AtomicU64 = AtomicU64::new(0);

/// Number of consecutive refusals by servers.
static REFUSED: AtomicU32 = AtomicU32::new(0);

/// The interval between requests stops growing after this number of refusals: every 15 to 75 s.
const MOST_REFUSED: u32 = 9;

/// Time of the next check of the connection (ticks).
static NEXT_LOOK: AtomicU64 = AtomicU64::new(0);

/// Data that is computed once, so that nothing is allocated later.
#[derive(Debug)]
struct Known {
    /// The sites' names. A server that leaves its table frees what was written there.
    names: Reservation<Table>,
    table: Reservation<Table>,
    /// The data that the server publishes to all clients.
    lease_page: Reservation<LeasePage>,
    sockets: Vec<PathBuf>,
    hello: [u8; Hello::BYTES],
}

/// Allocates and computes everything in advance. Without memory for it, no server decides.
pub(crate) fn prepare() {
    let _ = found_out();
}

/// The data that was computed. Async-signal-safe.
fn known() -> Option<&'static Known> {
    KNOWN.get()?.as_ref()
}

fn found_out() -> Option<&'static Known> {
    /// Limit of the length of a socket's path (unix(7)).
    const LONGEST: usize = 108;
    let find_out = || {
        fork::count();
        IN_CHILD.set::<LEAVES_SERVER>(leave_to_parent);
        let hello = Hello::Serve { name: program() }.to_bytes();
        let mut sockets = dimmer_protocol::candidates();
        sockets.retain(|path| path.as_os_str().len() < LONGEST);
        let (names, table) = (Reservation::new().ok()?, Reservation::new().ok()?);
        let lease_page = Reservation::new().ok()?;
        Some(Known { names, table, lease_page, sockets, hello })
    };
    KNOWN.get_or_init(find_out).as_ref()
}

/// The program's name.
fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Adds a site to the memory. Returns the place of its decision, or `None` if there is no more
/// room. Async-signal-safe.
pub(crate) fn add(_: &Adding, name: &[u8], line: u32) -> Option<&'static AtomicU32> {
    let [names, table] = [&known()?.names, &known()?.table].map(Reservation::get);
    let next = names.length();
    if ![names, table].iter().all(|table| table.has_memory(next..next + 1)) {
        return None;
    }
    names.add(name, line)?;
    table.decisions.get(table.add(name, line)?)
}

/// The statistics of the site with this decision.
pub(crate) fn sums(decision: &AtomicU32) -> Option<&'static dimmer_protocol::Site> {
    let table = known()?.table.get();
    let bytes = std::ptr::from_ref(decision) as usize - table.decisions.as_ptr() as usize;
    table.sites.get(bytes / size_of::<AtomicU32>())
}

/// Adds to the work that the program has completed, in the program's own unit (requests, pictures,
/// bytes). A policy server then uses this number in place of the time that the regions take. Costs
/// an addition in memory.
pub fn metric(amount: u64) {
    if let Some(known) = found_out() {
        known.table.get().head.client.add_done(amount);
    }
}

fn lease_page() -> Option<&'static LeasePage> {
    Some(known()?.lease_page.get())
}

/// Whether a server's decisions hold at the time `now` (ticks).
fn holds(now: u64) -> bool {
    lease_page().is_some_and(|lease_page| lease_page.holds(now))
}

/// The cores that a server may dedicate, if a server has named any.
pub(crate) fn cores() -> Option<Vec<CpuId>> {
    let cores: Vec<CpuId> = lease_page()?.cores().map(CpuId::new).collect();
    (!cores.is_empty()).then_some(cores)
}

/// Number of them that are dedicated at the time `now` (ticks): 0 if there is no server any more.
#[inline]
pub(crate) fn dedicated(now: u64) -> usize {
    lease_page().filter(|lease_page| lease_page.holds(now)).map_or(0, LeasePage::dedicated)
}

/// Checks the connection, if it is time to. Costs two loads if not; otherwise some system calls,
/// none of which waits. Returns whether it has checked it: other cores may be dedicated then.
#[inline]
pub(crate) fn tend(_: &Inside, now: u64) -> bool {
    // If the clocks of the processors differ, or the machine has slept, `now` may be far behind.
    if NEXT_LOOK.load(Ordering::Relaxed).wrapping_sub(now).wrapping_sub(1) >= LOOK << MOST_REFUSED {
        return tend_now(now);
    }
    false
}

#[cold]
fn tend_now(now: u64) -> bool {
    let refused = REFUSED.load(Ordering::Relaxed).min(MOST_REFUSED);
    NEXT_LOOK.store(now.wrapping_add(LOOK << refused), Ordering::Relaxed);
    let _uncancelled = Uncancelled::begin();
    let Some(known) = known() else { return false };
    // A parent's unfinished check does not concern its child.
    let Some(checking) = PHASE.begin(fork::forks(), BUSY, |_| true) else { return false };
    let next = match checking.before {
        ALONE => ask(known),
        ASKED => take_answer(known),
        _ => look(known, now),
    };
    checking.end(next);
    true
}

/// Connects to the first server that accepts. Returns the next state.
fn ask(known: &Known) -> u64 {
    /// The first number after those of the standard streams.
    const FIRST: i32 = 3;
    let asked = Client::of_first(&known.sockets, &known.hello);
    // A program that has closed its standard streams relies on getting these numbers.
    let connected = asked.map(Client::into_socket).and_then(|socket| {
        if socket.as_raw_fd() >= FIRST {
            Some(socket)
        } else {
            rustix::io::fcntl_dupfd_cloexec(&socket, FIRST).ok()
        }
    });
    let Some(socket) = connected else { return ALONE };
    let Some(inode) = inode(socket.as_fd()) else { return ALONE };
    SOCKET_INODE.store(inode, Ordering::Relaxed);
    SOCKET.store(socket.into_raw_fd(), Ordering::Relaxed);
    ASKED
}

/// Takes the server's answer, if it has arrived.
fn take_answer(known: &Known) -> u64 {
    let Some(socket) = socket() else { return ALONE };
    // A site that is added meanwhile would be lost.
    let Some(_adding) = Adding::begin() else { return ASKED };
    match Client::over(socket).memory() {
        Ok(None) => return ASKED,
        Ok(Some(memory)) if adopt(known, &memory).is_some() => {
            REFUSED.store(0, Ordering::Relaxed);
            return SERVED;
        }
        _ => {}
    }
    REFUSED.fetch_add(1, Ordering::Relaxed);
    disconnect();
    ALONE
}

/// Maps a server's memory. The table comes first: under the new lease, decisions of the previous
/// server would hold again.
fn adopt(known: &Known, memory: &MemoryFiles) -> Option<()> {
    known.table.adopt(memory.table.as_fd(), known.names.get()).ok()?;
    known.lease_page.adopt(memory.lease_page.as_fd()).ok()
}

/// Checks whether the server still exists; if not, looks for another one.
fn look(known: &Known, now: u64) -> u64 {
    let is_left = known.table.get().is_left();
    if holds(now) && !is_left {
        return SERVED;
    }
    let has_gone = || {
        let gone = socket().map(|socket| dimmer_protocol::receive(socket, &mut [0; 1]));
        !matches!(gone, Some(Ok(None)))
    };
    if is_left || has_gone() {
        disconnect();
        return ask(known);
    }
    SERVED
}

/// The connection, if its number still refers to it.
fn socket() -> Option<BorrowedFd<'static>> {
    let number = SOCKET.load(Ordering::Relaxed);
    if number < 0 {
        return None;
    }
    // SAFETY: if the program has closed it, the kernel returns an error, or the number refers to
    // another file, which the check of the inode detects.
    let socket = unsafe { BorrowedFd::borrow_raw(number) };
    (inode(socket)? == SOCKET_INODE.load(Ordering::Relaxed)).then_some(socket)
}

/// The inode of a socket; `None` for another kind of file.
fn inode(file: BorrowedFd<'_>) -> Option<u64> {
    let status = rustix::fs::fstat(file).ok()?;
    let is_socket = FileType::from_raw_mode(status.st_mode) == FileType::Socket;
    // All sockets lie on one file system.
    is_socket.then_some(status.st_ino)
}

fn disconnect() {
    if let Some(socket) = socket() {
        // SAFETY: this process's connection; nothing else closes it.
        drop(unsafe { OwnedFd::from_raw_fd(socket.as_raw_fd()) });
    }
    SOCKET.store(-1, Ordering::Relaxed);
}

/// For a child of fork(2): its parent's connection and decisions do not apply to it.
/// Async-signal-safe.
fn leave_to_parent() {
    disconnect();
    if let Some(known) = known() {
        // Without memory for it, the child continues to use the decisions of its parent's server,
        // while that server is alive.
        let _ = known.table.renounce(known.names.get());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use dimmer_protocol::{DELEGATE, Owned, ticks};

    use super::*;

    #[test]
    fn a_lease_does_not_hold_for_decisions_of_the_previous_server() {
        let [names, table] = [(); 2].map(|()| Reservation::<Table>::new().unwrap());
        let (lease_page, hello) = (Reservation::new().unwrap(), Hello::Watch.to_bytes());
        let known = Known { names, table, lease_page, sockets: Vec::new(), hello };
        known.table.get().decisions[0].store(DELEGATE, Ordering::Relaxed);
        let (lease_page, table) =
            (Owned::<LeasePage>::new().unwrap(), Owned::<Table>::new().unwrap());
        lease_page.write(&[1]);
        lease_page.renew(ticks() + (1 << 33));
        let [lease_page, table] =
            [lease_page.as_fd(), table.as_fd()].map(|file| file.try_clone_to_owned().unwrap());
        // The table says nothing of what it is.
        assert!(adopt(&known, &MemoryFiles { lease_page, table }).is_none());
        assert!(!known.lease_page.get().holds(ticks()));
    }
}
