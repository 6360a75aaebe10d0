//! What became of a program's calls.

use dimmer_policy::moving::Verdict;
use dimmer_policy::narrowing::{Form, Reason};

use crate::leaves::NoLeaf;
use crate::mechanism::How;

/// The summary of a run.
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
    /// Each function whose calls may move.
    pub functions: Vec<Function>,
    /// The code of the next run, if it differs or would differ.
    pub next: Option<Next>,
    /// Functions whose calls stayed because they are no leaf functions.
    pub others: Vec<NoLeaf>,
    /// Problems, each with its file.
    pub problems: Vec<String>,
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
    /// The share of the time in which the server wanted the calls moved; `None` without a server.
    pub server_moves_ratio: Option<f64>,
    /// What kept the calls in place, whatever the verdict.
    pub kept: Option<Kept>,
}

/// What keeps calls in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The program has narrower code.
    Narrow,
    /// A server should have decided, but there was neither a server nor a model.
    NobodyDecides,
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
            functions: Vec::new(),
            next: None,
            others: Vec::new(),
            problems: Vec::new(),
        }
    }
}
