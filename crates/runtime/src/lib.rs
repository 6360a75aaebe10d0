//! Delegates pieces of work to dedicated cores, and migrates threads there with their stacks. The
//! cost is close to that of the cache-line transfers that the hardware requires.
//!
//! One mechanism serves paper 001's delegation (§4.3), paper 004's user-mode migration (§3.3) and
//! paper 002's delegation (§5.4): a worker pinned to a dedicated core takes over a piece of work
//! while its owner waits. There are two kinds of work:
//!
//! - A *closure* runs on the worker's stack with the worker's thread-local storage
//!   ([`Cores::delegate`]).
//! - The *thread itself* migrates: the worker goes on with the thread's stack and thread-local
//!   storage, while the thread's own kernel thread waits at home ([`Cores::migrate`],
//!   [`Cores::begin_migration`]).
//!
//! Everything runs exactly once: work that cannot be moved runs where it is.
//!
//! # Example
//!
//! ```
//! use dimmer_runtime::{Cores, CpuId, Root};
//!
//! let words = ["some", "work"];
//! let count = || words.iter().map(|word| word.len()).sum::<usize>();
//! let letters = match Cores::start(&Root::live(), &[CpuId::new(1)]) {
//!     // On cpu 1, while this thread waits.
//!     Ok(cores) => cores.delegate(count),
//!     // There is no cpu 1, or no other one for this thread.
//!     Err(error) => {
//!         eprintln!("nothing is moved: {error}");
//!         count()
//!     }
//! };
//! assert_eq!(letters, 8);
//! ```
//!
//! Programs enter regions, and call moved functions, in signal handlers and in their own
//! allocators, too. The code on the way there therefore does not allocate, does not wait for a
//! lock, and calls no function that the program may have replaced. This holds once the crate was
//! prepared ([`prepare()`]) and the cores were started ([`dedicated`]). Neither happens in a signal
//! handler or in the middle of this crate's own code (`handler`, `thread`).
//!
//! # Layers
//!
//! Files import downwards only, which `cargo xtask tidy` checks. From the top:
//!
//! | layer | files |
//! |---|---|
//! | places that programs mark, and calls | `region`, `call_migration`, `prepare`, `wide` |
//! | who decides | `served`, `settings`, `adding` |
//! | the ways to move work | `migrate`, `delegate`, `cores` |
//! | workers | `wake_up`, `letting_back`, `worker`, `carry`, `cancel`, `shared` |
//! | handing work over | `job`, `lane`, `wait`, `placement`, `stack`, `sanitizer` |
//! | what a thread may be amid | `handler`, `allocator` |
//! | threads, processes | `fork`, `rseq`, `slot`, `end`, `spawn`, `signals`, `thread`, `sample` |
//! | whether to start, and naps | `confined`, `nap` |
//! | below all | `arch`, `primitive`, `phase`, `from_above`, `errno`, `exclusion` |
//!
//! What a lower file has to call of an upper one, the upper one leaves with it (`from_above`). Of
//! `arch`, the ways to wait for a line (`MONITORS`) belong to `wait`.

mod adding;
mod allocator;
mod arch;
mod call_migration;
mod can_migrate;
mod cancel;
mod carry;
mod confined;
mod cores;
mod delegate;
mod end;
mod errno;
mod exclusion;
mod first_thread;
mod fork;
mod from_above;
mod handler;
mod job;
mod lane;
mod letting_back;
mod migrate;
mod nap;
mod phase;
mod placement;
mod prepare;
mod primitive;
mod region;
mod rseq;
mod sample;
mod sanitizer;
mod served;
mod settings;
mod shared;
mod signals;
mod slot;
mod spawn;
mod stack;
mod start_error;
mod thread;
mod uncancelled;
mod wait;
mod wake_up;
pub mod wide;
mod worker;

pub use dimmer_host::filters;
pub use dimmer_host::giving_up;
pub use dimmer_host::off;
pub use dimmer_host::own_event;
pub use dimmer_host::root::{Root, parse_cpu_list};
pub use dimmer_processor::units::CpuId;
pub use dimmer_protocol::ticks_per_ns;

pub use call_migration::dedicated;
pub use can_migrate::{CannotMigrate, check as check_migration};
pub use cores::{Cores, Pending};
pub use migrate::{Migrated, Migration};
pub use prepare::prepare;
pub use region::{Entered, Region, Site, SiteStatistics, sites};
pub use served::metric;
pub use settings::{
    CORES, Decision, ENTRANCE, POLICY, Settings, SettingsError, of_process as settings,
};
pub use start_error::StartError;
#[cfg(not(all(test, loom)))]
pub use wait::monitor;
pub use wake_up::time_to_wake;
pub use worker::WORKERS;

/// For code that moves calls of unmodified programs: a thread leaves home where a function starts,
/// and returns where the function ends, or before.
pub mod calls {
    pub use crate::allocator::{start_in_advance, start_nothing, start_when_needed};
    pub use crate::arch::{system_call, thread_pointer};
    pub use crate::call_migration::{
        begin_migration, confine, cut_migration_short, dedicate, end_cut_migration, end_migration,
        use_cores,
    };
    pub use crate::delegate::{leave_delegated, unwind_delegated};
    pub use crate::errno::KeepErrno;
    pub use crate::first_thread::{note_exit, threads};
    pub use crate::handler::{handlers_block_their_signals, may_be_in_handler};
    pub use crate::migrate::holds_robust_mutex;
    pub use crate::prepare::prepare_to_move;
}
