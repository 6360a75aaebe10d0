//! Counters of the calling thread that it reads itself, with `rdpmc` and the page that the kernel
//! shares for that ([`own_event`]): no system call, tens of nanoseconds for all, and no file that
//! stays open.
//!
//! They count what paper 004 measures between marks (§3.2 "Metrics Selection"): instructions,
//! cycles, and two events about memory.

use std::io;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::cpuid::Cpuid;
use crate::microarchitecture::Microarchitecture;
use crate::own_event::{self, Event as Counted, Page};
use crate::perf;
use crate::root::Root;
use crate::unavailable::Unavailable;

/// An event about memory: the raw configuration, and what each count stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Event {
    config: u64,
    scale: u64,
}

/// The events about memory of a microarchitecture, as far as it has some in its cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MemoryEvents {
    /// Cycles of waiting for the L2 to be filled, or else requests that missed it.
    l2: Option<Event>,
    /// Data that came from beyond the L3.
    l3: Option<Event>,
}

/// Source: Linux, tools/perf/pmu-events/arch/x86/{skylake,amdzen2,amdzen3}/, by the names in the
/// comments. Zen's own event for L3 misses is in the L3, which no thread can count for itself.
const fn memory_events(microarchitecture: Microarchitecture) -> MemoryEvents {
    use Microarchitecture as M;
    const fn event(config: u64, scale: u64) -> Option<Event> {
        Some(Event { config, scale })
    }
    match microarchitecture {
        M::Haswell
        | M::HaswellServer
        | M::Broadwell
        | M::BroadwellServer
        | M::Skylake
        | M::SkylakeServer
        | M::CascadeLake
        | M::CooperLake
        | M::KabyLake
        | M::CometLake
        | M::IceLake
        | M::IceLakeServer
        | M::TigerLake
        | M::RocketLake
        | M::SapphireRapids
        | M::EmeraldRapids
        | M::GraniteRapids => MemoryEvents {
            // MEM_LOAD_RETIRED.L2_MISS and MEM_LOAD_RETIRED.L3_MISS.
            l2: event(0x10D1, 1),
            l3: event(0x20D1, 1),
        },
        M::Zen1 | M::Zen2 => MemoryEvents {
            // l2_latency.l2_cycles_waiting_on_fills, which is divided by four, and
            // ls_refills_from_sys from the memory of this or another node.
            l2: event(0x0162, 4),
            l3: event(0x4843, 1),
        },
        M::Zen3 | M::Zen4 | M::Zen5 => MemoryEvents {
            // l2_cache_req_stat.ic_dc_miss_in_l2, and ls_dmnd_fills_from_sys likewise.
            l2: event(0x0964, 1),
            l3: event(0x4843, 1),
        },
        _ => MemoryEvents { l2: None, l3: None },
    }
}

/// A counter, with what each count stands for.
#[derive(Debug)]
struct Open {
    page: *const Page,
    scale: u64,
}

/// Counters that count the thread which opened them, in user mode, until they are dropped. That
/// thread alone reads them. In a child of fork, they count nothing.
#[derive(Debug)]
pub struct UserCounters {
    counters: [Option<Open>; 4],
    process: Process,
}

// SAFETY: what the pages have is atomic, and they may be unmapped by any thread.
unsafe impl Send for UserCounters {}

impl UserCounters {
    /// Opens and starts the counters that this machine has. Takes some system calls, and a page of
    /// locked memory for each.
    ///
    /// * `root`: read only to explain a refusal.
    ///
    /// # Errors
    /// [`Unavailable`]: not even instructions and cycles can be counted, or `rdpmc` is not allowed.
    pub fn open(root: &Root) -> Result<Self, Unavailable> {
        /// `PERF_TYPE_HARDWARE` and `PERF_TYPE_RAW`.
        const HARDWARE: u32 = 0;
        const RAW: u32 = 4;
        const WHAT: &str = "performance counters at marks";
        let events = memory_events(Cpuid::instruction().identity().microarchitecture);
        let process = Process::own().map_err(|error| {
            let why = format!("this kernel marks no memory for a child to find empty: {error}");
            Unavailable::new(WHAT, why, "Linux 4.14")
        })?;
        let mut opened = Self { counters: [const { None }; 4], process };
        for (at, name) in [(0, "instructions"), (1, "cycles")] {
            // Cycles are 0, instructions 1.
            let event = Counted { name, kind: HARDWARE, config: u64::from(at == 0) };
            let open = start(event, 1);
            opened.counters[at] =
                Some(open.map_err(|error| perf::refused(root, name, &io::Error::from(error)))?);
        }
        // SAFETY: mapped until this value is dropped.
        let may_read = |open: &Open| unsafe { &*open.page }.may_read();
        if !opened.counters.iter().flatten().all(may_read) {
            let remedy = "as root: echo 1 > /sys/bus/event_source/devices/cpu/rdpmc";
            return Err(Unavailable::new(WHAT, "the kernel lets no program execute rdpmc", remedy));
        }
        let memory = [("l2", events.l2), ("l3", events.l3)];
        for (counter, (name, event)) in opened.counters[2..].iter_mut().zip(memory) {
            let start = |Event { config, scale }: Event| {
                start(Counted { name, kind: RAW, config }, scale).ok()
            };
            *counter = event.and_then(start);
        }
        Ok(opened)
    }

    /// The counts since the start: instructions, cycles, cycles of waiting for the L2 (or requests
    /// that missed it), data from beyond the L3. `None`: not counted, or not at this moment,
    /// because other programs use the counters.
    #[must_use]
    #[inline]
    pub fn read(&self) -> [Option<u64>; 4] {
        if !self.process.is_this() {
            return [None; 4];
        }
        self.counters.each_ref().map(|counter| {
            let counter = counter.as_ref()?;
            // SAFETY: mapped until this value is dropped, in the process that it is of.
            let count = unsafe { &*counter.page }.read()?.count;
            Some(count.wrapping_mul(counter.scale))
        })
    }
}

impl Drop for UserCounters {
    fn drop(&mut self) {
        // Something else may lie there in a child.
        if self.process.is_this() {
            for counter in self.counters.iter().flatten() {
                // SAFETY: this value's own, which is not read any more.
                unsafe { own_event::unmap(counter.page) };
            }
        }
    }
}

/// Starts a counter of the calling thread.
fn start(event: Counted, scale: u64) -> Result<Open, Errno> {
    let opened = own_event::open(event, None, false)?;
    Ok(Open { page: own_event::map(&opened)?, scale })
}

/// A process, as it tells itself from a child of fork without a system call, also one that was made
/// without the C library.
#[derive(Clone, Copy, Debug)]
struct Process(u32);

impl Process {
    /// The number of the process, in a page that the kernel empties in a child
    /// (`MADV_WIPEONFORK`). Never freed.
    fn place() -> Option<&'static AtomicU32> {
        // Ordering: pairs with the exchange in `map_place`.
        // SAFETY: null, or mapped for good.
        unsafe { PLACE.load(Ordering::Acquire).as_ref() }
    }

    /// This process. Takes no lock, which a child could inherit from another thread.
    ///
    /// # Errors
    /// The kernel's: there is no such page.
    fn own() -> Result<Self, Errno> {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let place = match Self::place() {
            Some(place) => place,
            None => map_place()?,
        };
        // Relaxed: a number that stands for itself.
        let number = place.load(Ordering::Relaxed);
        if number != 0 {
            return Ok(Self(number));
        }
        let own = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let taken = place.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed);
        Ok(Self(taken.map_or_else(|others| others, |_| own)))
    }

    #[inline]
    fn is_this(self) -> bool {
        Self::place().is_some_and(|place| place.load(Ordering::Relaxed) == self.0)
    }
}

static PLACE: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

fn map_place() -> Result<&'static AtomicU32, Errno> {
    let (null, access) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new mapping, wherever the kernel puts it.
    let mapped = unsafe { mmap_anonymous(null, own_event::BYTES, access, MapFlags::PRIVATE) }?;
    // SAFETY: it is as long, and nothing is in it.
    if let Err(error) = unsafe { madvise(mapped, own_event::BYTES, Advice::LinuxWipeOnFork) } {
        // SAFETY: nothing has it.
        let _ = unsafe { munmap(mapped, own_event::BYTES) };
        return Err(error);
    }
    let (null, own) = (std::ptr::null_mut(), mapped.cast());
    // Ordering: pairs with the load in `Process::place`.
    let place = match PLACE.compare_exchange(null, own, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => own,
        Err(others) => {
            // SAFETY: nothing has it: another thread's came first.
            let _ = unsafe { munmap(mapped, own_event::BYTES) };
            others
        }
    };
    // SAFETY: mapped for good, and all zero at first.
    Ok(unsafe { &*place })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_processors_have_events_about_memory() {
        for microarchitecture in [Microarchitecture::Zen1, Microarchitecture::Skylake] {
            let events = memory_events(microarchitecture);
            assert!(events.l2.is_some() && events.l3.is_some(), "{microarchitecture}");
        }
        assert_eq!(memory_events(Microarchitecture::Unknown), MemoryEvents::default());
    }

    #[test]
    fn a_child_of_fork_is_another_process() {
        let own = Process::own().unwrap();
        assert!(own.is_this() && Process::own().unwrap().is_this());
        // SAFETY: the child makes system calls alone.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let was_this = own.is_this();
            let is_child = Process::own().is_ok_and(Process::is_this);
            let failed = was_this || own.is_this() || !is_child;
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(failed.into()) };
        }
        let mut status = -1;
        // SAFETY: writes to `status`.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((status, own.is_this()), (0, true));
    }

    #[test]
    #[expect(clippy::print_stdout, reason = "a test that cannot run here says so")]
    fn counts_grow() {
        match UserCounters::open(&Root::live()) {
            Ok(counters) => {
                let before = counters.read();
                let after = counters.read();
                assert!(after[0] > before[0], "{before:?}, {after:?}");
                let elsewhere = UserCounters { counters: [const { None }; 4], process: Process(0) };
                assert_eq!(elsewhere.read(), [None; 4]);
            }
            Err(unavailable) => println!("SKIPPED: {unavailable:?}"),
        }
    }
}
