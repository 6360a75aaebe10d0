//! What became of a program's calls, or of its threads.

use std::collections::BTreeMap;
use std::time::Duration;

use dimmer_observe::{FunctionPlace, Observed};
use dimmer_policy::moving::Verdict;
use dimmer_policy::narrowing::{Form, Reason};

use dimmer_policy::specialise::Stays;
use dimmer_processor::units::{CpuId, Nanos};

use crate::leaves::NoLeaf;
use crate::locks::Locks;
use crate::mechanism::How;
use crate::trials::Tried;

/// The summary of a run.
#[derive(Clone, Debug)]
pub enum Summary {
    /// Calls may have moved.
    Calls(Account),
    /// Threads may have moved.
    Threads(Specialised),
    /// Threads may have migrated at marks.
    Phases(Migrating),
    /// Locks were observed.
    Locks(Locks),
}

impl Summary {
    /// Takes what was traced of the run, if anything was.
    pub fn take_traced(&mut self) -> Option<Box<Traced>> {
        match self {
            Self::Calls(account) => account.traced.take(),
            Self::Threads(_) | Self::Phases(_) | Self::Locks(_) => None,
        }
    }

    /// That of a run in which nothing could move.
    #[must_use]
    pub fn nothing(how: How) -> Self {
        if how.specialises {
            Self::Threads(Specialised::default())
        } else if how.follows_phases {
            Self::Phases(Migrating::default())
        } else {
            Self::Calls(Account::nothing(how))
        }
    }
}

/// What became of threads that passed marks.
#[derive(Clone, Debug, Default)]
pub struct Migrating {
    /// The slow CPUs.
    pub cpus: Vec<CpuId>,
    /// The threads that passed a mark.
    pub threads: Vec<MigratingThread>,
    /// The number of threads that the last of them sums up, if there were too many.
    pub threads_summed: usize,
    /// The functions whose entries are marks, each with its calls.
    pub marks: Vec<(String, u64)>,
    /// What threads have learned: the part of its speed that what follows each of these functions
    /// keeps on a slow CPU. Only those that were tried there; none if they migrated by a profile.
    pub learned: Vec<(String, f64)>,
    /// That part above which a slow CPU is better; `None`: they migrated by a profile.
    pub keeps: Option<f64>,
    /// Problems, each with its file.
    pub problems: Vec<String>,
}

/// A thread that passed a mark.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigratingThread {
    /// Its number.
    pub thread: u32,
    /// How many marks it passed.
    pub marks: u64,
    /// How often it migrated to a slow CPU.
    pub left: u64,
    /// How often it came home.
    pub came_home: u64,
}

/// What became of threads with wide code.
#[derive(Clone, Debug, Default)]
pub struct Specialised {
    /// The CPUs that were wide at some time.
    pub cpus: Vec<CpuId>,
    /// Whose they were.
    pub times: WideTimes,
    /// What moving a thread there and back took at the start (ns); `None` if that was not measured.
    pub round_trip_ns: Option<f64>,
    /// The threads that called one of the functions.
    pub threads: Vec<SpecialisedThread>,
    /// The number of threads that the last of them sums up, if there were too many.
    pub threads_summed: usize,
    /// The functions, each with its calls.
    pub functions: Vec<(String, u64)>,
    /// Problems, each with its file.
    pub problems: Vec<String>,
}

/// Whose CPUs were wide, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WideTimes {
    /// Whether the user has named the CPUs, so that no policy server was asked.
    pub is_named: bool,
    /// The policy server's were.
    pub server: Duration,
    /// The policy server gave none.
    pub none: Duration,
    /// The run's own were.
    pub own: Duration,
}

/// A thread that called one of the functions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialisedThread {
    /// Its process, as that knows itself.
    pub process: u32,
    /// Its number.
    pub thread: u32,
    /// Its calls of these functions.
    pub calls: u64,
    /// How often it went to wide CPUs.
    pub to_wide: u64,
    /// How often it was given its own back.
    pub back: u64,
    /// How long it could run on wide CPUs.
    pub wide: Nanos,
    /// Why it has stayed where it was, at times.
    pub stays: Vec<Stays>,
}

/// The summary of a run whose calls may move.
#[derive(Clone, Debug)]
pub struct Account {
    /// How calls were to move.
    pub how: How,
    /// Calls of all functions that may move.
    pub calls: u64,
    /// The number of them that moved.
    pub moved: u64,
    /// The share of CPU time spent on moving calls; `None` if no call was timed in place.
    pub moving_ratio: Option<f64>,
    /// Whether a policy server took part in the decisions.
    pub is_served: bool,
    /// Whether the program was given narrower code.
    pub is_narrow: bool,
    /// The share of CPU time that narrower code would have given back by the model, from and to.
    pub narrow_gain_ratio: Option<(f64, f64)>,
    /// What trials have shown of mechanisms; empty if none decided.
    pub tried: Vec<Tried>,
    /// Each function whose calls may move.
    pub functions: Vec<Function>,
    /// The code of the next run, if it differs or would differ.
    pub next: Option<Next>,
    /// Functions whose calls stayed because they are no leaf functions.
    pub others: Vec<NoLeaf>,
    /// Problems, each with its file.
    pub problems: Vec<String>,
    /// What each thread did, if it was traced.
    pub traced: Option<Box<Traced>>,
}

/// What was observed of a run that was traced.
#[derive(Clone, Debug, Default)]
pub struct Traced {
    /// What was observed.
    pub observed: Observed,
    /// The names of its functions.
    pub names: BTreeMap<FunctionPlace, String>,
}

/// The code of the next run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Next {
    /// Its own or narrower code.
    pub form: Form,
    /// The reason.
    pub reason: Reason,
}

/// A function whose calls may move.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name, as `dimmer scan` shows it.
    pub name: String,
    /// The number of its calls.
    pub calls: u64,
    /// Median duration of calls in place at the last verdict (ns).
    pub lasted_ns: Option<f64>,
    /// Median duration of moved calls (ns).
    pub moved_ns: Option<f64>,
    /// The verdict from the observed calls alone.
    pub verdict: Verdict,
    /// Whether its hook was to be taken out, so that later calls may not have been counted.
    pub is_unhooked: bool,
    /// The share of the time in which the server wanted the calls moved; `None` without a server.
    pub server_moves_ratio: Option<f64>,
}

impl Account {
    /// The summary for a program in which nothing can move.
    #[must_use]
    pub const fn nothing(how: How) -> Self {
        Self {
            how,
            calls: 0,
            moved: 0,
            moving_ratio: None,
            is_served: false,
            is_narrow: false,
            narrow_gain_ratio: None,
            tried: Vec::new(),
            functions: Vec::new(),
            next: None,
            others: Vec::new(),
            problems: Vec::new(),
            traced: None,
        }
    }
}
