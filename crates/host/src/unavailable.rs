//! "Cannot" as a type of its own: neither success nor an input or output error.

/// Something that Dimmer could use is missing: hardware, a kernel feature, or permission.
///
/// Never fatal by itself: the caller continues without it, or passes this on to the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} not available: {why} ({remedy})")]
pub struct Unavailable {
    /// What is missing, as a noun.
    pub what: String,
    /// Reason, with the file or system call that reported it.
    pub why: String,
    /// How to get it, or what Dimmer does instead if there is no way to get it.
    pub remedy: String,
}

impl Unavailable {
    /// `what` is missing because of `why`; `remedy` says how to get it.
    #[must_use]
    pub fn new(what: impl Into<String>, why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), why: why.into(), remedy: remedy.into() }
    }
}
