//! "Cannot" as a type of its own: neither success nor a failure of input or output.

/// Something that Dimmer could use is not there: hardware, a kernel feature, or permission.
///
/// Never fatal by itself: whoever asked goes on without it, or passes this on to the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} not available: {why} ({remedy})")]
pub struct Unavailable {
    /// What is missing, as a noun.
    pub what: String,
    /// Why it is missing, naming the file or the system call that said so.
    pub why: String,
    /// How to get it, or what Dimmer does instead where nobody can get it.
    pub remedy: String,
}

impl Unavailable {
    /// `what` is missing because of `why`; `remedy` says how to get it.
    #[must_use]
    pub fn new(what: impl Into<String>, why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), why: why.into(), remedy: remedy.into() }
    }
}
