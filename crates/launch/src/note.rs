//! What happens while a program is prepared and followed, for the caller to print.

use dimmer_host::journal::Report;
use dimmer_narrow::{Plan, Width};
use dimmer_policy::narrowing::{Form, Reason};
use dimmer_processor::units::CpuId;

use crate::mechanism::How;
use crate::trials::Switched;

/// Something that the user may want to know.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Note {
    /// The model has no function whose calls cost anything here.
    NothingToMove {
        /// How calls were to move.
        how: How,
        /// The model's name or file.
        model: String,
    },
    /// No call moves: this machine or process does not allow it.
    NoCallMoves {
        /// How calls were to move.
        how: How,
        /// The reason.
        why: String,
    },
    /// Calls may move.
    MayMove {
        /// How these calls move.
        how: How,
        /// The number of functions.
        functions: usize,
        /// Where to.
        cpus: Vec<CpuId>,
        /// What it takes, there and back (ns).
        takes_ns: f64,
    },
    /// Threads may become wide.
    Specialises {
        /// The number of functions.
        functions: usize,
        /// The wide CPUs.
        cpus: Vec<CpuId>,
        /// What moving a thread there and back takes (ns).
        takes_ns: f64,
    },
    /// Whose CPUs are wide.
    WideCpus {
        /// The policy server's, or the run's own, and why.
        from: WideFrom,
    },
    /// Threads may migrate at marks.
    FollowsPhases {
        /// The number of marks.
        marks: usize,
        /// The number of those that are slow.
        slow: usize,
        /// The value above which they are.
        threshold: f64,
        /// The slow CPUs.
        cpus: Vec<CpuId>,
        /// What migrating there and back takes (ns).
        takes_ns: f64,
    },
    /// Threads may migrate at marks, as they learn.
    LearnsPhases {
        /// The number of functions whose entries may be marks.
        functions: usize,
        /// The part of its speed that code must keep on a slow CPU to be there.
        keeps: f64,
        /// The slow CPUs.
        cpus: Vec<CpuId>,
        /// What migrating there and back takes (ns).
        takes_ns: f64,
    },
    /// The policy server decides which calls move.
    Server,
    /// There is no policy server: trials decide which of these mechanisms is in force.
    Trials {
        /// The mechanisms, none first.
        mechanisms: Vec<Switched>,
    },
    /// The policy server dedicates these cores, and calls of this program go elsewhere.
    ServerElsewhere {
        /// The server's cores.
        cpus: Vec<CpuId>,
    },
    /// No call can go to the server's cores: the program was given others.
    ServerMisfit {
        /// How calls were to move.
        how: How,
        /// The server's cores.
        server: Vec<CpuId>,
        /// The program's.
        own: Vec<CpuId>,
    },
    /// The code that the program runs, and why.
    Code {
        /// Its own or narrower code.
        form: Form,
        /// The reason.
        reason: Reason,
    },
    /// This processor has nothing wider than 256 bits.
    NothingWider,
    /// The program was narrowed.
    Narrowed(Narrowed),
    /// Other programs are kept off these CPUs.
    Dedicated {
        /// The CPUs.
        cpus: Vec<CpuId>,
        /// The number of threads that could not be moved away.
        intruders: usize,
    },
    /// Locks are only observed: this machine takes no requests of clocks.
    NoClocks {
        /// The reason.
        why: String,
    },
    /// No lock is boosted: it is not known from which length of a section on that pays.
    NoBreakEven,
    /// Changes of the machine were undone, or not.
    Restored(Report),
    /// Clocks were not all given back at the end.
    NotUndone(Report),
    /// No clock was given back at the end.
    CannotUndo {
        /// The reason.
        why: String,
    },
}

/// Whose CPUs are wide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WideFrom {
    /// The policy server's.
    Server,
    /// The run's own: there is no policy server, or it refuses the program.
    NoServer,
    /// The run's own: the policy server may dedicate none.
    ServerHasNone,
    /// The run's own: threads cannot go to the policy server's.
    ServerElsewhere {
        /// The server's.
        server: Vec<CpuId>,
        /// The run's own.
        own: Vec<CpuId>,
    },
}

/// What narrows a program.
#[derive(Clone, Debug)]
pub struct Narrowed {
    /// The variables that are set, and what is not.
    pub plan: Plan,
    /// The widest vectors that are left.
    pub width: Width,
    /// Whether CPUID hides features; if not, the reason, which is empty if that was not asked for.
    pub cpuid: Result<(), String>,
}

/// Takes the notes.
pub type Notes<'a> = dyn FnMut(Note) + 'a;
