//! The lease: for how long decisions hold if nothing more is heard of the server.
//!
//! It is renewed between any two steps of the server's work, each of which is short, so that
//! however much there is to do at once, it lapses only where the server hangs.

use std::time::{Duration, Instant};

use dimmer_protocol::{LEASE, LeasePage, Owned};

/// The lease is renewed when a quarter of it is over: a server that is late by half still counts.
const RENEWAL: Duration = Duration::from_nanos(LEASE.subsec_nanos() as u64 / 4);

/// The lease, and where clients read it.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) page: Owned<LeasePage>,
    /// When it was renewed last, while there are clients.
    renewed: Option<Instant>,
}

impl Lease {
    pub(super) const fn new(page: Owned<LeasePage>) -> Self {
        Self { page, renewed: None }
    }

    /// Lets decisions hold for so long from now on.
    pub(super) fn renew(&self, span: Duration) {
        self.page.renew(dimmer_protocol::ticks().saturating_add(ticks_of(span)));
    }

    /// Renews it if it is time, and keeps it from now on.
    pub(super) fn hold(&mut self) {
        let now = Instant::now();
        if self.renewed.is_none_or(|at| now.duration_since(at) >= RENEWAL) {
            self.renewed = Some(now);
            self.renew(LEASE);
        }
    }

    /// Renews it if it is kept and it is time.
    pub(super) fn keep(&mut self) {
        if self.renewed.is_some() {
            self.hold();
        }
    }

    /// Keeps it no longer: nobody is there, or it was renewed for another time.
    pub(super) const fn rest(&mut self) {
        self.renewed = None;
    }

    /// When it is to be renewed, if it is kept.
    pub(super) fn next(&self) -> Option<Instant> {
        self.renewed.map(|at| at + RENEWAL)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a second of any counter"
)]
pub(super) fn ticks_of(span: Duration) -> u64 {
    (span.as_nanos() as f64 * dimmer_protocol::ticks_per_ns()) as u64
}
