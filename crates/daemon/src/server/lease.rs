//! The lease: how long decisions remain valid if the server does nothing more.
//!
//! The server renews it between any two steps of its work, each of which is short. So however much
//! work there is at once, the lease lapses only if the server hangs.

use std::time::{Duration, Instant};

use dimmer_processor::units::whole;
use dimmer_protocol::{LEASE, LeasePage, Owned};

/// The lease is renewed when a quarter of it is over, so a server may be late by half of it.
const RENEWAL: Duration = Duration::from_nanos(LEASE.subsec_nanos() as u64 / 4);

/// The lease, and the page from which clients read it.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) page: Owned<LeasePage>,
    /// When it was last renewed; `None` if it is not kept.
    renewed: Option<Instant>,
}

impl Lease {
    pub(super) const fn new(page: Owned<LeasePage>) -> Self {
        Self { page, renewed: None }
    }

    /// Lets decisions hold for this long from now on.
    pub(super) fn renew(&self, span: Duration) {
        self.page.renew(dimmer_protocol::ticks().saturating_add(ticks_of(span)));
    }

    /// Keeps the lease from now on, and renews it if that is due.
    pub(super) fn hold(&mut self) {
        let now = Instant::now();
        if self.renewed.is_none_or(|at| now.duration_since(at) >= RENEWAL) {
            self.renewed = Some(now);
            self.renew(LEASE);
        }
    }

    /// Renews the lease if it is kept and that is due.
    pub(super) fn keep(&mut self) {
        if self.renewed.is_some() {
            self.hold();
        }
    }

    /// Stops keeping it: there are no clients, or it was renewed for another time.
    pub(super) const fn rest(&mut self) {
        self.renewed = None;
    }

    /// When the lease is due for renewal, if it is kept.
    pub(super) fn next(&self) -> Option<Instant> {
        self.renewed.map(|at| at + RENEWAL)
    }
}

pub(super) fn ticks_of(span: Duration) -> u64 {
    whole(span.as_nanos() as f64 * dimmer_protocol::ticks_per_ns())
}
