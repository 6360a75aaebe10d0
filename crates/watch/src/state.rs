//! The state of the server as a document, for `dimmer top` and for metrics. `docs/dimmerd.md`
//! describes every key.

use std::borrow::Cow;
use std::sync::Arc;

use dimmer_policy::server::decision::{Action, Reason};
use dimmer_policy::server::loops;
use serde::{Deserialize, Serialize};

/// The document's schema.
pub const SCHEMA: &str = "dimmer/state/1";

/// The state of the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// [`SCHEMA`].
    pub schema: String,
    /// The server's version.
    pub version: String,
    /// The server's process.
    pub pid: u32,
    /// Time since the start (s).
    pub up_s: f64,
    /// The policy in force.
    pub policy: Policy,
    /// The cores that may be dedicated.
    pub cores: Cores,
    /// Clients of the users that the asking user may see.
    pub clients: Vec<Client>,
    /// The number of other clients.
    pub hidden: usize,
    /// Programs whose clocks the server moderates, of the users that the asking user may see.
    #[serde(default)]
    pub clocks: Vec<ClockClient>,
    /// Why the server does not moderate clocks, if its settings say that it should.
    #[serde(default)]
    pub no_clocks: Option<String>,
    /// What programs did since the server started, for users who may see all clients. The first is
    /// the sum of those that have none of their own.
    #[serde(default)]
    pub programs: Vec<Program>,
    /// Core specialisation in the kernel, if its module is loaded and can be read.
    pub specialise: Option<Specialise>,
}

/// A program whose clocks the server moderates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClockClient {
    /// Id of its process.
    pub pid: i32,
    /// Id of its user.
    pub uid: u32,
    /// The name that it reports.
    pub name: String,
    /// Its requests.
    #[serde(flatten)]
    pub requests: ClockRequests,
}

/// How many of a program's threads request clocks, and what became of that.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClockRequests {
    /// All requests.
    pub requested: u64,
    /// Those in force.
    pub granted: u64,
    /// Those whose user waits for its turn.
    pub waiting: u64,
    /// Those for slow clocks that would slow threads that the user may not slow.
    pub held_back: u64,
    /// Those that the user may not have, those for other programs' threads or for CPUs that the
    /// thread may not use, and those that the machine did not take.
    pub refused: u64,
}

/// Core specialisation in the kernel. What is counted is counted since its module was loaded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Specialise {
    /// The narrow CPUs.
    pub narrow: Vec<u32>,
    /// The wide CPUs that are online.
    pub wide: Vec<u32>,
    /// Whether Dimmer's scheduler moves threads; otherwise their affinity does.
    pub is_scheduled: bool,
    /// How often wide code met a narrow CPU.
    pub faults: u64,
    /// How often a thread ran on a wide CPU after that.
    pub moves: u64,
    /// The time until it did, summed up (ns).
    pub move_ns: u64,
    /// How often a thread came back to a narrow CPU.
    pub returns: u64,
    /// Phases of wide code that a system call ended.
    pub ended_by_calls: u64,
    /// Phases of wide code that time ended.
    pub ended_by_time: u64,
    /// How often wide code ran on a narrow CPU because its thread may run on no other.
    pub allowed: u64,
    /// How often it ran there because its thread had faulted too often at one place.
    pub limits: u64,
    /// Moves by affinity, without the scheduler.
    pub without_scheduler: u64,
    /// Writes of the register XCR0.
    pub switches: u64,
    /// How often a narrow CPU stayed wide until its next switch.
    pub missed: u64,
}

/// The policy in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// `trials`, `thresholds` or `auto`.
    #[serde(rename = "loop")]
    pub decides: String,
    /// `site` or `client`.
    pub unit: String,
    /// `call-rate` or `region-time`.
    pub metric: String,
    /// `fair` or `sum`.
    pub mixing: String,
    /// The file of the model that gives the cost of calls.
    pub model: Option<String>,
    /// Why the costs are not known.
    pub no_prices: Option<String>,
    /// The cost of a hand-over (ns).
    pub hand_over_ns: Option<f64>,
    /// The most that a call costs the code after it, at L1, L2, ... (ns).
    pub call_ns: Option<Vec<f64>>,
    /// The thresholds of L1, L2, ..., if the loop has thresholds.
    pub thresholds: Option<Vec<f64>>,
    /// The mechanisms that the loop compares, none first; empty if it compares none.
    #[serde(default)]
    pub mechanisms: Vec<Mechanism>,
}

/// A mechanism that the loop compares with others, for all clients at once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mechanism {
    /// `none` or `delegate`.
    pub mechanism: Cow<'static, str>,
    /// Whether it is in force now, for a trial or not.
    pub is_in_force: bool,
    /// Whether it is the one found best so far.
    pub is_chosen: bool,
    /// How much more work is done under it than under none, by trials: 0.01 is 1 % more; `None` for
    /// none, and without a trial.
    pub gain_ratio: Option<f64>,
    /// By how much that may be wrong, to either side.
    pub open_ratio: Option<f64>,
}

impl From<loops::Mechanism> for Mechanism {
    fn from(of: loops::Mechanism) -> Self {
        Self {
            mechanism: of.name.into(),
            is_in_force: of.is_in_force,
            is_chosen: of.is_chosen,
            gain_ratio: of.gain.map(|gain| gain.mean),
            open_ratio: of.gain.map(|gain| gain.open).filter(|open| open.is_finite()),
        }
    }
}

/// The cores that may be dedicated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cores {
    /// Their hardware threads, in the order in which they are dedicated.
    pub may: Vec<u32>,
    /// The number of these that are dedicated now.
    pub dedicated: usize,
    /// Why no core may be dedicated.
    pub no_core: Option<String>,
}

/// What the processes of a program in a unit did since the server started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The name that its processes report.
    pub program: String,
    /// The systemd service, or else the innermost slice; empty if there is none.
    pub unit: String,
    /// How often a process of it connected.
    pub connections: u64,
    /// Entries of its sites.
    pub calls: u64,
    /// Entries that were moved.
    pub moved: u64,
    /// Time in its sites (ns).
    pub region_ns: u64,
    /// Work done, by its own account.
    pub done: u64,
    /// Time of its threads on dedicated cores, if it asks for cores (ns).
    pub dedicated_ns: u64,
    /// How often it reported impossible values.
    pub lies: u64,
}

/// A client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Client {
    /// Number of the client, as in recordings; unique for the life of the server.
    pub client: u64,
    /// Id of its process.
    pub pid: i32,
    /// Id of its user.
    pub uid: u32,
    /// The name that it reports.
    pub name: String,
    /// Its systemd service, or else the innermost slice; empty if there is none.
    #[serde(default)]
    pub unit: String,
    /// How often it reported impossible values.
    pub lies: u64,
    /// Work done per second, by its own account.
    pub metric: Option<f64>,
    /// How many of its threads were on wide cores, on average over the last seconds; `None` if it
    /// does not ask for cores.
    #[serde(default)]
    pub wide_threads: Option<f64>,
    /// Its sites.
    pub sites: Vec<Site>,
}

/// A site. Rates and times are of the last seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Site {
    /// Name of the site.
    pub name: Arc<str>,
    /// Source line of the site.
    pub line: u32,
    /// Entries since its program started.
    pub calls: u64,
    /// Entries that were moved since then.
    pub moved: u64,
    /// Entries per second.
    pub calls_per_s: f64,
    /// The share of one CPU's time spent in it.
    pub share: f64,
    /// Mean duration of an entry that stays (ns).
    pub stayed_ns: Option<f64>,
    /// Mean duration of an entry that is moved, including the way (ns).
    pub moved_ns: Option<f64>,
    /// The clock right after it, relative to the highest.
    pub clock: Option<f64>,
    /// `stay` or `delegate`.
    pub action: Cow<'static, str>,
    /// Reason, in a few words.
    pub reason: Cow<'static, str>,
}

/// The action for a site's calls, as a word.
#[must_use]
pub const fn action(action: Action) -> &'static str {
    match action {
        Action::Stay => "stay",
        Action::Move => "move",
    }
}

/// The reason of a decision, in a few words.
#[must_use]
pub fn reason(reason: Reason) -> Cow<'static, str> {
    Cow::Borrowed(match reason {
        Reason::NoEvidence => "no evidence",
        Reason::NoCore => "no core",
        Reason::Scalar => "scalar",
        Reason::OthersShare => "others' share",
        Reason::HandOverCostsMore => "hand-over costs more",
        Reason::Sparse => "sparse",
        Reason::Dense(level) => return format!("dense at L{}", level.index()).into(),
        Reason::Untried => "untried",
        Reason::Tried => "tried",
        Reason::NotWorth => "not worth it",
        Reason::Expected => "expected gain",
        Reason::Worth => "worth it",
        Reason::Asked => "asked for",
        Reason::Unneeded => "not needed",
        Reason::Held { is_gain_expected: true } => "only observed: expected gain",
        Reason::Held { is_gain_expected: false } => "only observed",
    })
}
