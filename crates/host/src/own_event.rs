//! Events that the kernel counts for the thread that opened them, and the page by which that thread
//! reads such a count itself (`rdpmc`). Source: perf_event_open(2), "MMAP layout".
//!
//! The page alone keeps the event: its file is closed as soon as the page is mapped, so that the
//! program neither finds nor closes it. A child of fork has none of its parent's pages.
//!
//! Nothing here calls the C library, whose functions the program may have replaced.

use std::arch::asm;
use std::ffi::c_long;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, ioctl, opcode};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// An event, by the numbers of perf_event_open(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its name, as perf has it.
    pub name: &'static str,
    /// Its type.
    pub kind: u32,
    /// Which of that type.
    pub config: u64,
}

/// Size of the mapping (bytes).
pub const BYTES: usize = 4096;

/// The part of `perf_event_attr` that the first version of the interface has.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sample: u64,
    format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    address: u64,
}

const _: () = assert!(size_of::<Attributes>() == 64);

/// Flags of the attributes, and of the call.
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const CLOSE_ON_EXEC: usize = 8;

/// A page, as far as it is used here.
#[derive(Debug)]
#[repr(C)]
pub struct Page {
    version: u32,
    compatible: u32,
    /// Changes with each change of what follows.
    lock: AtomicU32,
    /// The number of the counter, plus one; 0 if it does not count at this moment.
    index: AtomicU32,
    /// What to add to the counter.
    offset: AtomicU64,
    /// For how long the event was to be counted, and was (ns).
    enabled: AtomicU64,
    running: AtomicU64,
    capabilities: AtomicU64,
    /// How many bits the counter has.
    width: AtomicU16,
}

/// Bit of the capabilities: the kernel lets the program execute `rdpmc`.
const MAY_READ: u64 = 1 << 2;

/// What a page has at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The number of events so far.
    pub count: u64,
    /// For how long the event was not counted so far, because others used the counters (ns).
    pub uncounted: u64,
}

/// An event, until its file is closed: unless another thread has closed it, and opened another one
/// of the same number.
#[derive(Debug)]
pub struct Opened {
    file: ManuallyDrop<OwnedFd>,
    /// The kernel's number of the event.
    id: u64,
}

impl Opened {
    fn new(file: OwnedFd) -> Result<Self, Errno> {
        let mut opened = Self { file: ManuallyDrop::new(file), id: 0 };
        opened.id = opened.id_now().ok_or(Errno::BADF)?;
        Ok(opened)
    }

    /// The number of the event that the file is now.
    fn id_now(&self) -> Option<u64> {
        /// `PERF_EVENT_IOC_ID`.
        const ID: Opcode = opcode::read::<u64>(b'$', 7);
        // SAFETY: the kernel writes a number of 64 bits.
        let get = unsafe { Getter::<ID, u64>::new() };
        // SAFETY: of an event, or of another file, which refuses it.
        unsafe { ioctl(&*self.file, get) }.ok()
    }

    fn is_there(&self) -> bool {
        self.id_now() == Some(self.id)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.is_there() {
            // SAFETY: it is not used again. The system call alone closes it: in the C library's
            // function, a thread may be cancelled.
            unsafe { rustix::io::close(self.file.as_raw_fd()) };
        }
    }
}

/// Opens an event that counts the calling thread from now on, as a member of the group of `leader`,
/// in the kernel too or not.
///
/// # Errors
/// The kernel's; EBADF if another thread has closed the file meanwhile.
pub fn open(event: Event, leader: Option<&Opened>, with_kernel: bool) -> Result<Opened, Errno> {
    let attributes = Attributes {
        kind: event.kind,
        size: 64,
        config: event.config,
        flags: EXCLUDE_HYPERVISOR | if with_kernel { 0 } else { EXCLUDE_KERNEL },
        ..Attributes::default()
    };
    let leader = leader.map_or(-1, |leader| leader.file.as_fd().as_raw_fd());
    match i32::try_from(perf_event_open(&attributes, leader)) {
        // SAFETY: a new file, which nothing else owns.
        Ok(file @ 0..) => Opened::new(unsafe { OwnedFd::from_raw_fd(file) }),
        Ok(error) => Err(Errno::from_raw_os_error(-error)),
        Err(_) => Err(Errno::IO),
    }
}

/// The system call, for the calling thread on any CPU. Leaves `errno` as it is.
fn perf_event_open(attributes: &Attributes, leader: i32) -> c_long {
    let result: c_long;
    // SAFETY: the attributes live until the call returns; the kernel changes rcx, r11 and the
    // result.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") libc::SYS_perf_event_open => result,
            in("rdi") std::ptr::from_ref(attributes),
            in("rsi") 0_usize,
            in("rdx") -1_isize,
            in("r10") leader as isize,
            in("r8") CLOSE_ON_EXEC,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    result
}

/// Reads a counter of this CPU.
///
/// # Safety
/// The processor has this counter, and the kernel lets this process read it.
unsafe fn rdpmc(counter: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: by contract.
    unsafe {
        asm!(
            "rdpmc",
            in("ecx") counter,
            out("eax") low,
            out("edx") high,
            options(nostack, nomem)
        );
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Maps the page of an event, which counts until [`unmap`].
///
/// # Errors
/// The kernel's; EBADF if another thread has closed the file meanwhile.
pub fn map(event: &Opened) -> Result<*const Page, Errno> {
    let (null, access) = (std::ptr::null_mut(), ProtFlags::READ);
    // SAFETY: a new mapping, wherever the kernel puts it.
    let mapped = unsafe { mmap(null, BYTES, access, MapFlags::SHARED, &*event.file, 0) };
    let mapped = mapped?.cast_const().cast();
    if !event.is_there() {
        // SAFETY: it is the mapping of another file, which nothing has.
        unsafe { unmap(mapped) };
        return Err(Errno::BADF);
    }
    Ok(mapped)
}

/// Ends a mapping, and with it the event.
///
/// # Safety
/// It is [`map`]'s, of this process, and not used any more.
pub unsafe fn unmap(page: *const Page) {
    // SAFETY: by contract.
    let _ = unsafe { munmap(page.cast_mut().cast(), BYTES) };
}

impl Page {
    /// Whether the kernel lets the program read the counter.
    #[must_use]
    pub fn may_read(&self) -> bool {
        self.capabilities.load(Ordering::Relaxed) & MAY_READ != 0
    }

    /// The count of the calling thread, whose event it is; `None` if there is none at this moment.
    #[must_use]
    #[inline]
    pub fn read(&self) -> Option<Count> {
        // SAFETY: the page has this counter, and says that the kernel lets the process read it.
        self.read_by(|counter| unsafe { rdpmc(counter) })
    }

    /// Likewise; `counter` reads a counter.
    fn read_by(&self, counter: impl Fn(u32) -> u64) -> Option<Count> {
        // The kernel changes the page while the thread is not running: mostly once at a time.
        const ATTEMPTS: usize = 16;
        (0..ATTEMPTS).find_map(|_| self.attempt(&counter))?
    }

    /// `None` if the page changed meanwhile.
    fn attempt(&self, counter: impl Fn(u32) -> u64) -> Option<Option<Count>> {
        // Ordering: only this thread's CPU writes, in interrupts.
        let lock = self.lock.load(Ordering::Acquire);
        let index = self.index.load(Ordering::Relaxed);
        let mut count = None;
        if let Some(index) = index.checked_sub(1).filter(|_| self.may_read()) {
            // The counter is narrower than a word, and signed.
            let unused = 64_u32.saturating_sub(self.width.load(Ordering::Relaxed).into()).min(63);
            let value = (counter(index) << unused).cast_signed() >> unused;
            let enabled = self.enabled.load(Ordering::Relaxed);
            count = Some(Count {
                count: self.offset.load(Ordering::Relaxed).wrapping_add(value.cast_unsigned()),
                uncounted: enabled.saturating_sub(self.running.load(Ordering::Relaxed)),
            });
        }
        fence(Ordering::Acquire);
        (self.lock.load(Ordering::Relaxed) == lock).then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(index: u32, offset: i64, width: u16) -> Page {
        Page {
            version: 0,
            compatible: 0,
            lock: AtomicU32::new(4),
            index: AtomicU32::new(index),
            offset: AtomicU64::new(offset.cast_unsigned()),
            enabled: AtomicU64::new(900),
            running: AtomicU64::new(600),
            capabilities: AtomicU64::new(MAY_READ),
            width: AtomicU16::new(width),
        }
    }

    #[test]
    fn a_count_is_the_counter_with_its_sign_and_the_offset() {
        let count = |count| Some(Count { count, uncounted: 300 });
        let positive = made(3, 1000, 48).read_by(|index| u64::from(index) * 10);
        assert_eq!(positive, count(1020));
        // A counter of 48 bits that the kernel has set to -5.
        assert_eq!(made(1, 1000, 48).read_by(|_| (1 << 48) - 5), count(995));
        // More bits than there are.
        assert_eq!(made(1, 1, 200).read_by(|_| 6), count(7));
        assert_eq!(made(1, 1, 0).read_by(|_| 6).map(|count| count.uncounted), Some(300));
    }

    #[test]
    fn there_is_no_count_without_a_counter_or_the_right_to_read_it() {
        let unread = |_| unreachable!("it must not be read");
        assert_eq!(made(0, 1000, 48).read_by(unread), None);
        let forbidden = made(1, 1000, 48);
        forbidden.capabilities.store(!MAY_READ, Ordering::Relaxed);
        assert_eq!(forbidden.read_by(unread), None);
    }

    #[test]
    fn a_page_that_changes_meanwhile_is_read_again() {
        let page = made(1, 1000, 48);
        let moved = page.read_by(|_| {
            if page.offset.swap(2000, Ordering::Relaxed) == 1000 {
                page.lock.fetch_add(2, Ordering::Relaxed);
            }
            7
        });
        assert_eq!(moved.map(|count| count.count), Some(2007));
        let restless = page.read_by(|_| u64::from(page.lock.fetch_add(2, Ordering::Relaxed)));
        assert_eq!(restless, None);
    }

    /// An event that this thread may count, if there is one.
    fn faults() -> Option<Opened> {
        let faults = Event { name: "page-faults", kind: 1, config: 2 };
        open(faults, None, true).or_else(|_| open(faults, None, false)).ok()
    }

    #[test]
    #[expect(clippy::print_stdout, reason = "a test that cannot run here says so")]
    fn a_file_that_another_thread_has_put_in_its_place_stays_open_and_is_not_mapped() {
        let Some(event) = faults() else { return println!("SKIPPED: perf_event_open fails") };
        let other = std::fs::File::open("/proc/self/exe").unwrap();
        let number = event.file.as_fd().as_raw_fd();
        // SAFETY: what takes the place is a file, too.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        assert_eq!(map(&event), Err(Errno::BADF));
        drop(event);
        // SAFETY: it was left open, and nothing else owns it.
        let left = unsafe { OwnedFd::from_raw_fd(number) };
        assert!(rustix::fs::fstat(&left).is_ok());
    }

    /// An event of the kernel, which machines without counters have, too. Its page has the count of
    /// the moment in which the thread got its CPU.
    #[test]
    #[expect(clippy::print_stdout, reason = "a test that cannot run here says so")]
    fn a_page_counts_for_its_thread_after_its_file_is_closed() {
        let Some(event) = faults() else { return println!("SKIPPED: perf_event_open fails") };
        let page = map(&event).unwrap();
        drop(event);
        // SAFETY: mapped until the end of the test.
        let seen = unsafe { &*page };
        assert_eq!(seen.read_by(|_| unreachable!("the processor does not count it")), None);
        let rest = || std::thread::sleep(std::time::Duration::from_millis(1));
        rest();
        let before = seen.offset.load(Ordering::Relaxed);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping.
        let fresh = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                100 * BYTES,
                protection,
                MapFlags::PRIVATE,
            )
        };
        let fresh = fresh.unwrap().cast::<u8>();
        // SAFETY: within the mapping.
        unsafe {
            rustix::mm::madvise(fresh.cast(), 100 * BYTES, rustix::mm::Advice::LinuxNoHugepage)
        }
        .unwrap();
        for at in 0..100 {
            // SAFETY: within the mapping.
            let place = unsafe { fresh.add(at * BYTES) };
            // SAFETY: likewise.
            unsafe { place.write_volatile(1) };
        }
        rest();
        let faults = seen.offset.load(Ordering::Relaxed) - before;
        // The test itself may touch some pages for the first time, too.
        assert!((100..120).contains(&faults), "{faults}");
        // SAFETY: it is not used any more.
        unsafe { unmap(page) };
    }
}
