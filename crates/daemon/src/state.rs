//! All that goes on in the server, as a document: for `dimmer top`, and for metrics.
//! `docs/dimmerd.md` describes every key.

use std::borrow::Cow;
use std::sync::Arc;

use dimmer_policy::server::decision::{Action, Reason};
use serde::{Deserialize, Serialize};

/// The document's schema.
pub const SCHEMA: &str = "dimmer/state/1";

/// What goes on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// [`SCHEMA`].
    pub schema: String,
    /// The server's version.
    pub version: String,
    /// The server's process.
    pub pid: u32,
    /// For how long it runs (s).
    pub up_s: f64,
    /// What decides.
    pub policy: Policy,
    /// The cores that may be dedicated.
    pub cores: Cores,
    /// Clients of users whom the one who asks may see.
    pub clients: Vec<Client>,
    /// How many others there are.
    pub hidden: usize,
}

/// What decides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// `trials` or `thresholds`.
    #[serde(rename = "loop")]
    pub decides: String,
    /// `site` or `client`.
    pub unit: String,
    /// `call-rate` or `region-time`.
    pub metric: String,
    /// `fair` or `sum`.
    pub mixing: String,
    /// Where what calls cost is from.
    pub model: Option<String>,
    /// Why that is not known.
    pub no_prices: Option<String>,
    /// What a hand-over takes (ns).
    pub hand_over_ns: Option<f64>,
    /// The most that a call costs the code after it, at L1, L2, ... (ns).
    pub call_ns: Option<Vec<f64>>,
    /// The thresholds of L1, L2, ..., if the loop has any.
    pub thresholds: Option<Vec<f64>>,
}

/// The cores that may be dedicated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cores {
    /// Their hardware threads, in the order in which they are dedicated.
    pub may: Vec<u32>,
    /// How many of these are dedicated now.
    pub dedicated: usize,
    /// Why none may be.
    pub no_core: Option<String>,
}

/// A client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Client {
    /// Its number, as in recordings; no other client of this server ever has it.
    pub client: u64,
    /// Its process.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// What it calls itself.
    pub name: String,
    /// How often it said what cannot be.
    pub lies: u64,
    /// What it gets done by its own account, a second.
    pub metric: Option<f64>,
    /// Its sites.
    pub sites: Vec<Site>,
}

/// A site. Rates and times are of the last seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Site {
    /// Its name.
    pub name: Arc<str>,
    /// Its line.
    pub line: u32,
    /// Entries since its program began.
    pub calls: u64,
    /// Entries that were moved since then.
    pub moved: u64,
    /// Entries a second.
    pub calls_per_s: f64,
    /// The part of one CPU's time in it.
    pub share: f64,
    /// How long one that stays takes (ns).
    pub stayed_ns: Option<f64>,
    /// How long one that is moved takes, with the way (ns).
    pub moved_ns: Option<f64>,
    /// The clock right after it, as a part of the highest.
    pub clock: Option<f64>,
    /// `stay` or `offload`.
    pub action: Cow<'static, str>,
    /// Why, in a word or two.
    pub reason: Cow<'static, str>,
}

/// What becomes of a site's calls, in a word.
#[must_use]
pub const fn action(action: Action) -> &'static str {
    match action {
        Action::Stay => "stay",
        Action::Offload => "offload",
    }
}

/// Why, in a word or two.
#[must_use]
pub fn reason(reason: Reason) -> Cow<'static, str> {
    Cow::Borrowed(match reason {
        Reason::NoEvidence => "no evidence",
        Reason::NoCore => "no core",
        Reason::Scalar => "scalar",
        Reason::OthersShare => "others' share",
        Reason::HandOverDearer => "hand-over dearer",
        Reason::Sparse => "sparse",
        Reason::Dense(level) => return format!("dense at L{}", level.index()).into(),
        Reason::Untried => "untried",
        Reason::Tried => "tried",
        Reason::NotWorth => "not worth it",
        Reason::Expected => "expected gain",
        Reason::Worth => "worth it",
    })
}
