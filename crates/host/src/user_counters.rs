//! Counters of the calling thread that it reads itself, with `rdpmc` and the page that the kernel
//! shares for that: no system call, tens of nanoseconds for all.
//!
//! They count what paper 004 measures between marks (§3.2 "Metrics Selection"): instructions,
//! cycles, and two events about memory.

use std::fmt;
use std::io;

use perf_event::events::{Hardware, Raw};
use perf_event::{Builder, Sampler};

use crate::cpuid::Cpuid;
use crate::microarchitecture::Microarchitecture;
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
struct Open {
    sampler: Sampler,
    scale: u64,
}

/// Counters that count the thread which opened them, in user mode, until they are dropped.
pub struct UserCounters([Option<Open>; 4]);

impl fmt::Debug for UserCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserCounters").finish_non_exhaustive()
    }
}

impl UserCounters {
    /// Opens and starts the counters that this machine has. Takes some system calls, and two pages
    /// of locked memory for each.
    ///
    /// * `root`: read only to explain a refusal.
    ///
    /// # Errors
    /// [`Unavailable`]: not even instructions and cycles can be counted, or `rdpmc` is not allowed.
    pub fn open(root: &Root) -> Result<Self, Unavailable> {
        let events = memory_events(Cpuid::instruction().identity().microarchitecture);
        let refuse = |name, error: io::Error| perf::refused(root, name, &error);
        let instructions = start(Builder::new(Hardware::INSTRUCTIONS), 1)
            .map_err(|error| refuse("instructions", error))?;
        let cycles = start(Builder::new(Hardware::CPU_CYCLES), 1)
            .map_err(|error| refuse("cycles", error))?;
        if instructions.sampler.read_user().count().is_none() {
            let why = "the kernel lets no program execute rdpmc";
            let remedy = "as root: echo 1 > /sys/bus/event_source/devices/cpu/rdpmc";
            return Err(Unavailable::new("performance counters at marks", why, remedy));
        }
        let raw = |event: Option<Event>| {
            let event = event?;
            start(Builder::new(Raw::new(event.config)), event.scale).ok()
        };
        Ok(Self([Some(instructions), Some(cycles), raw(events.l2), raw(events.l3)]))
    }

    /// The counts since the start: instructions, cycles, cycles of waiting for the L2 (or requests
    /// that missed it), data from beyond the L3. `None`: not counted, or not at this moment,
    /// because other programs use the counters.
    #[must_use]
    pub fn read(&self) -> [Option<u64>; 4] {
        self.0.each_ref().map(|counter| {
            let counter = counter.as_ref()?;
            Some(counter.sampler.read_user().count()?.wrapping_mul(counter.scale))
        })
    }
}

/// Starts a counter of the calling thread.
fn start(builder: Builder<'_>, scale: u64) -> io::Result<Open> {
    // The crate maps the page with the count only together with a ring buffer, which stays empty.
    let mut sampler = builder.build()?.sampled(PAGE_BYTES)?;
    sampler.enable()?;
    Ok(Open { sampler, scale })
}

/// Bytes of the smallest ring buffer.
const PAGE_BYTES: usize = 4096;

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
    #[expect(clippy::print_stdout, reason = "a test that cannot run here says so")]
    fn counts_grow() {
        match UserCounters::open(&Root::live()) {
            Ok(counters) => {
                let before = counters.read();
                let after = counters.read();
                assert!(after[0] > before[0], "{before:?}, {after:?}");
            }
            Err(unavailable) => println!("SKIPPED: {unavailable:?}"),
        }
    }
}
