//! Moves pieces of work to the core where they belong, and threads with their stacks, at about the
//! price of the cache-line transfers that physics asks for.
//!
//! One substrate carries paper 001's offloading (§4.3), paper 004's user-mode migration (§3.3) and
//! paper 002's delegation (§5.4): a worker pinned to a dedicated core takes over a piece of work
//! while its owner waits. What is handed over is either a *closure*, which runs on the worker's
//! stack with the worker's thread-local storage ([`Cores::offload`]), or the *thread itself*: the
//! worker goes on with the thread's stack and its thread-local storage, while the thread's own
//! kernel thread waits at home ([`Cores::borrow`], [`Cores::depart`]).
//!
//! Everything runs exactly once: where it cannot be moved, it runs where it is.
//!
//! Programs enter regions, and call what is moved, in handlers of signals and in their own
//! allocators, too. So nothing on the way there allocates, waits for a lock or calls what the
//! program may have functions of its own for, once it was prepared ([`prepare()`]) and the cores
//! are started ([`dedicated`]), which happens in neither a handler nor the middle of either
//! (`handler`, `thread`).

mod cancel;
mod clock;
mod cores;
mod doorbell;
mod end;
mod errno;
mod exclusion;
mod fork;
mod futex;
mod handler;
mod job;
mod lane;
mod lend;
mod monitor_wait;
mod placement;
mod prepare;
mod region;
mod sample;
mod sanitizer;
mod served;
mod settings;
mod signals;
mod slot;
mod spawn;
mod stack;
mod switch;
mod thread;
mod travel;
mod trip;
mod word;
mod worker;

pub use dimmer_host::root::Root;
pub use dimmer_processor::units::CpuId;
pub use dimmer_protocol::ticks_per_ns;

pub use cores::{Cores, Pending, StartError};
pub use prepare::prepare;
pub use region::{Entered, Region, Site, SiteStatistics, sites};
pub use served::metric;
pub use settings::{
    CORES, Decision, ENTRANCE, POLICY, Settings, SettingsError, of_process as settings,
};
pub use travel::{Away, CannotTravel, Journey, check as check_travel};
pub use trip::dedicated;
pub use worker::WORKERS;

/// For who moves calls of programs that do not know of it: threads that are sent away where a
/// function begins and come home where it ends, or before.
pub mod calls {
    pub use crate::errno::KeepErrno;
    pub use crate::lend::{leave_lent, unwind_lent};
    pub use crate::prepare::prepare_to_move;
    pub use crate::travel::holds_robust_mutex;
    pub use crate::trip::{
        come_home_early, come_home_quietly, dedicate, employ, end_at_home, leave_home,
    };
}
