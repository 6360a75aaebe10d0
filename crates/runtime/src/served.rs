//! This process as a client of a policy server: sites' decisions and sums lie in memory that the
//! server sees, too.
//!
//! The memory is there from the begin and stays where it is; a server's is put over it when one is
//! found, so sites never learn of it. There is no thread for that: whoever enters a region and
//! looks more closely anyway looks after the connection now and then ([`tend`]), and never waits. A
//! decision to move work counts as long as the server renews its lease.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use dimmer_processor::units::CpuId;
use dimmer_protocol::{Hello, LeasePage, Reservation, Table, Welcome};
use rustix::fs::FileType;

use crate::cancel::Uncancelled;
use crate::region::Adding;
use crate::thread::Inside;
use crate::{fork, trip};

/// Ticks between two looks after the connection: about 30 to 150 ms.
const LOOK: u64 = 1 << 27;

/// What is shared with a server; `None` if there is no memory to be had.
static KNOWN: OnceLock<Option<Known>> = OnceLock::new();

/// How far this process is with a server (one of the following), and above that how often it had
/// been forked then.
static PHASE: AtomicU64 = AtomicU64::new(0);
const PHASE_BITS: u32 = 2;
/// There is no server.
const ALONE: u64 = 0;
/// One was asked, and has not answered.
const ASKED: u64 = 1;
/// One decides.
const SERVED: u64 = 2;
/// A thread is looking after it.
const BUSY: u64 = 3;

/// The connection, and what tells it from another file that the program has under its number by
/// now.
static SOCKET: AtomicI32 = AtomicI32::new(-1);
static SOCKET_INODE: AtomicU64 = AtomicU64::new(0);

/// How often a server was asked in vain, one after the other.
static REFUSED: AtomicU32 = AtomicU32::new(0);

/// After so many times in vain, it is asked as rarely as it ever is: every half a minute to two.
const MOST_REFUSED: u32 = 9;

/// When to look after it next (ticks).
static NEXT_LOOK: AtomicU64 = AtomicU64::new(0);

/// What is found out once, so that nothing is allocated later.
#[derive(Debug)]
struct Known {
    table: Reservation<Table>,
    /// What the server tells all.
    lease_page: Reservation<LeasePage>,
    sockets: Vec<PathBuf>,
    hello: [u8; Hello::BYTES],
}

/// Has all that is to be had ahead. Where there is no memory for it, no server decides.
pub(crate) fn prepare() {
    let _ = found_out();
}

/// What was found out. Async-signal-safe.
fn known() -> Option<&'static Known> {
    KNOWN.get()?.as_ref()
}

fn found_out() -> Option<&'static Known> {
    /// No socket's path is as long (unix(7)).
    const LONGEST: usize = 108;
    let find_out = || {
        fork::count();
        let hello = Hello::Serve { name: program() }.to_bytes();
        let mut sockets = dimmer_protocol::candidates();
        sockets.retain(|path| path.as_os_str().len() < LONGEST);
        let (table, lease_page) = (Reservation::new().ok()?, Reservation::new().ok()?);
        Some(Known { table, lease_page, sockets, hello })
    };
    KNOWN.get_or_init(find_out).as_ref()
}

/// What the program is called.
fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Gives a site a place in the memory; where its decision is. `None`: there is no more room.
/// Async-signal-safe.
pub(crate) fn add(_: &Adding, name: &[u8], line: u32) -> Option<&'static AtomicU32> {
    let table = known()?.table.get();
    let next = table.length();
    let place = table.has_memory(next..next + 1).then(|| table.add(name, line));
    table.decisions.get(place??)
}

/// What the site with this decision has seen.
pub(crate) fn sums(decision: &AtomicU32) -> Option<&'static dimmer_protocol::Site> {
    let table = known()?.table.get();
    let bytes = std::ptr::from_ref(decision) as usize - table.decisions.as_ptr() as usize;
    table.sites.get(bytes / size_of::<AtomicU32>())
}

/// Says that the program has got so much more done, in a unit of its own (requests, pictures,
/// bytes): what a policy server goes by, instead of the time that its regions take. Costs an
/// addition in memory.
pub fn metric(amount: u64) {
    if let Some(known) = found_out() {
        known.table.get().head.client.add_done(amount);
    }
}

fn lease_page() -> Option<&'static LeasePage> {
    Some(known()?.lease_page.get())
}

/// Whether what a server has decided counts at that moment (ticks).
fn holds(now: u64) -> bool {
    lease_page().is_some_and(|lease_page| lease_page.holds(now))
}

/// The cores that a server may dedicate, if one has said so.
pub(crate) fn cores() -> Option<Vec<CpuId>> {
    let cores: Vec<CpuId> = lease_page()?.cores().map(CpuId::new).collect();
    (!cores.is_empty()).then_some(cores)
}

/// How many of them are dedicated at that moment (ticks): none where there is no server any more.
#[inline]
pub(crate) fn dedicated(now: u64) -> usize {
    lease_page().filter(|lease_page| lease_page.holds(now)).map_or(0, LeasePage::dedicated)
}

/// Looks after the connection, if it is time to. Costs two loads if not; else some system calls,
/// none of which waits.
#[inline]
pub(crate) fn tend(inside: &Inside, now: u64) {
    // Clocks of processors that are not in step, or a machine that has slept, may be far behind.
    if NEXT_LOOK.load(Ordering::Relaxed).wrapping_sub(now).wrapping_sub(1) >= LOOK << MOST_REFUSED {
        tend_now(inside, now);
    }
}

#[cold]
fn tend_now(inside: &Inside, now: u64) {
    let refused = REFUSED.load(Ordering::Relaxed).min(MOST_REFUSED);
    NEXT_LOOK.store(now.wrapping_add(LOOK << refused), Ordering::Relaxed);
    let _uncancelled = Uncancelled::begin();
    let Some(known) = known() else { return };
    let generation = u64::from(fork::forks()) << PHASE_BITS;
    let before = PHASE.load(Ordering::Acquire);
    // What a parent was in the middle of does not concern its child.
    let is_own = before >> PHASE_BITS << PHASE_BITS == generation;
    let phase = if is_own { before & BUSY } else { ALONE };
    if phase == BUSY
        || PHASE
            .compare_exchange(before, generation | BUSY, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
    {
        return;
    }
    let next = match phase {
        ALONE => ask(known),
        ASKED => take_answer(known),
        _ => look(known, now),
    };
    PHASE.store(generation | next, Ordering::Release);
    trip::follow(inside, dedicated(now));
}

/// Connects to the first server there is; the phase after it.
fn ask(known: &Known) -> u64 {
    /// The first number that no standard stream has.
    const FIRST: i32 = 3;
    let connected = known.sockets.iter().find_map(|path| {
        let socket = dimmer_protocol::connect(path).ok()?;
        dimmer_protocol::send(socket.as_fd(), &known.hello, &[]).ok()?;
        Some(socket)
    });
    // Where the program has closed its standard streams, it counts on these numbers.
    let connected = connected.and_then(|socket| {
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

/// Takes the server's answer, if it has come.
fn take_answer(known: &Known) -> u64 {
    let Some(socket) = socket() else { return ALONE };
    // A site that is added meanwhile would be lost.
    let Some(_adding) = Adding::begin() else { return ASKED };
    let mut bytes = [0; Welcome::BYTES];
    match dimmer_protocol::receive(socket, &mut bytes) {
        Ok(None) => return ASKED,
        Ok(Some((length, [Some(lease_page), Some(table)])))
            if length == bytes.len()
                && Welcome::parse(&bytes).is_ok()
                && adopt(known, &lease_page, &table).is_some() =>
        {
            REFUSED.store(0, Ordering::Relaxed);
            return SERVED;
        }
        _ => {}
    }
    REFUSED.fetch_add(1, Ordering::Relaxed);
    disconnect();
    ALONE
}

fn adopt(known: &Known, lease_page: &OwnedFd, table: &OwnedFd) -> Option<()> {
    known.lease_page.adopt(lease_page.as_fd()).ok()?;
    known.table.adopt(table.as_fd()).ok()
}

/// Sees whether the server is still there; if not, looks for another one.
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

/// The connection, if it is still that.
fn socket() -> Option<BorrowedFd<'static>> {
    let number = SOCKET.load(Ordering::Relaxed);
    if number < 0 {
        return None;
    }
    // SAFETY: if the program has closed it, the kernel says so, or it is another file, which is
    // found out.
    let socket = unsafe { BorrowedFd::borrow_raw(number) };
    (inode(socket)? == SOCKET_INODE.load(Ordering::Relaxed)).then_some(socket)
}

/// What tells a socket from others; `None` if it is none.
fn inode(file: BorrowedFd<'_>) -> Option<u64> {
    let status = rustix::fs::fstat(file).ok()?;
    let is_socket = FileType::from_raw_mode(status.st_mode) == FileType::Socket;
    // All sockets lie on one file system.
    is_socket.then_some(status.st_ino)
}

fn disconnect() {
    if let Some(socket) = socket() {
        // SAFETY: this process's connection; nobody else closes it.
        drop(unsafe { OwnedFd::from_raw_fd(socket.as_raw_fd()) });
    }
    SOCKET.store(-1, Ordering::Relaxed);
}

/// To be called in a child of fork(2): its parent's connection and decisions are not its own.
/// Async-signal-safe.
pub(crate) fn leave_to_parent() {
    disconnect();
    if let Some(known) = known() {
        // Without memory for it the child goes on with what its parent's server decides, as long as
        // that is alive.
        let _ = known.table.renounce();
    }
}
