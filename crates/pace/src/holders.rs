//! Which of a thread's requests is in force, when several parts of its program have one each.
//!
//! A part ends its own request alone, in whatever order they end. Of those that are left, the one
//! made last is in force; `docs/pace.md` has the rule with its two exceptions. Plain data: who
//! makes the request of the machine is in `thread`.

use std::num::NonZeroU64;

use crate::Request;

/// A part of the program that has a request of its own for the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A section of the lock with this number, its address for instance. A thread may have several
    /// of one lock, as of one that it shares twice.
    Section(usize),
    /// The wait for a lock: of these a thread has one at a time.
    Wait,
    /// Locks, for the time outside of sections. A thread has one such request, that of the lock
    /// with this number, which has made it last. It ends the lock's last section.
    Between(usize),
}

/// The holders, and those that only this crate has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// The thread itself, outside of scopes.
    Thread,
    Scope(NonZeroU64),
    Lock(Holder),
    /// The visit to a fast core.
    Visit,
}

impl Of {
    /// Whether it is open for a part of the program's time.
    const fn is_inner(self) -> bool {
        !matches!(self, Self::Thread | Self::Lock(Holder::Between(_)))
    }

    /// Whether a later request of `other` takes the place of this one's.
    fn is_replaced_by(self, other: Self) -> bool {
        match (self, other) {
            (Self::Lock(Holder::Between(_)), Self::Lock(Holder::Between(_))) => true,
            (Self::Lock(Holder::Section(_)), _) => false,
            _ => self == other,
        }
    }

    const fn scope(self) -> Option<NonZeroU64> {
        match self {
            Self::Scope(number) => Some(number),
            _ => None,
        }
    }
}

/// What is asked of the machine; `None`: nothing, so that the machine decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) request: Option<Request>,
    /// Whether the agent is to make the request.
    pub(crate) by_neighbour: bool,
}

/// The requests of a thread, the one in force last.
#[derive(Debug)]
pub(crate) struct Holders(Vec<(Of, Wanted)>);

impl Holders {
    /// None.
    pub(crate) const EMPTY: Self = Self(Vec::new());

    /// What is in force.
    pub(crate) fn in_force(&self) -> Wanted {
        self.0.last().map_or_else(Wanted::default, |(_, wanted)| *wanted)
    }

    /// Whether that is the request that [`Self::own`] would replace.
    pub(crate) fn is_own_in_force(&self) -> bool {
        self.0.last().is_some_and(|(of, _)| *of == self.innermost())
    }

    /// The innermost open scope, or else the thread. Scopes that begin later have greater numbers.
    fn innermost(&self) -> Of {
        let scopes = self.0.iter().map(|(of, _)| *of);
        scopes.filter_map(Of::scope).max().map_or(Of::Thread, Of::Scope)
    }

    /// Makes this the thread's own request: that of its innermost open scope, if it has one.
    /// Outside of scopes, no request ends what locks have between their sections, too: they have
    /// made it for the thread.
    pub(crate) fn own(&mut self, wanted: Wanted) {
        match self.innermost() {
            Of::Thread if wanted.request.is_none() => self.0.retain(|(of, _)| of.is_inner()),
            of => self.make(of, wanted),
        }
    }

    pub(crate) fn begin_scope(&mut self, scope: NonZeroU64, wanted: Wanted) {
        self.make(Of::Scope(scope), wanted);
    }

    pub(crate) fn end_scope(&mut self, scope: NonZeroU64) {
        self.end(Of::Scope(scope));
    }

    pub(crate) fn begin_visit(&mut self, wanted: Wanted) {
        self.make(Of::Visit, wanted);
    }

    pub(crate) fn end_visit(&mut self) {
        self.end(Of::Visit);
    }

    /// Makes a lock's request. One for the time between sections ends the lock's last section.
    pub(crate) fn hold(&mut self, holder: Holder, wanted: Wanted) {
        if let Holder::Between(lock) = holder {
            self.end(Of::Lock(Holder::Section(lock)));
        }
        self.make(Of::Lock(holder), wanted);
    }

    /// Ends a lock's request.
    pub(crate) fn release(&mut self, holder: Holder) {
        self.end(Of::Lock(holder));
    }

    /// Ends a lock's last section, whose request counts on for the time between sections.
    pub(crate) fn stay(&mut self, lock: usize) {
        let of = Of::Lock(Holder::Section(lock));
        let held = self.0.iter().rev().find(|(other, _)| *other == of);
        if let Some((_, wanted)) = held.copied() {
            self.hold(Holder::Between(lock), wanted);
        }
    }

    fn make(&mut self, of: Of, wanted: Wanted) {
        self.0.retain(|(other, _)| !other.is_replaced_by(of));
        let first_inner = self.0.iter().position(|(other, _)| other.is_inner());
        let is_between = matches!(of, Of::Lock(Holder::Between(_)));
        let place = first_inner.filter(|_| is_between).unwrap_or(self.0.len());
        self.0.insert(place, (of, wanted));
    }

    fn end(&mut self, of: Of) {
        if let Some(place) = self.0.iter().rposition(|(other, _)| *other == of) {
            self.0.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTION: Holder = Holder::Section(1);
    const OTHER: Holder = Holder::Section(2);
    const BETWEEN: Holder = Holder::Between(1);

    fn wanted(percent: u8) -> Wanted {
        Wanted { request: Request::percent(percent), by_neighbour: false }
    }

    fn scope(number: u64) -> NonZeroU64 {
        NonZeroU64::new(number).expect("not 0")
    }

    /// What happens in a thread. Requests are in percent, and 0 is none.
    #[derive(Clone, Copy)]
    enum Step {
        Own(u8),
        Begin(u64, u8),
        Finish(u64),
        Hold(Holder, u8),
        Release(Holder),
        Stay(usize),
        Visit(u8),
        Home,
    }
    use Step::{Begin, Finish, Hold, Home, Own, Release, Stay, Visit};

    fn take(holders: &mut Holders, step: Step) {
        match step {
            Own(percent) => holders.own(wanted(percent)),
            Begin(number, percent) => holders.begin_scope(scope(number), wanted(percent)),
            Finish(number) => holders.end_scope(scope(number)),
            Hold(holder, percent) => holders.hold(holder, wanted(percent)),
            Release(holder) => holders.release(holder),
            Stay(lock) => holders.stay(lock),
            Visit(percent) => holders.begin_visit(wanted(percent)),
            Home => holders.end_visit(),
        }
    }

    /// Steps, and what is in force after each.
    #[track_caller]
    fn check(steps: &[(Step, u8)]) {
        let mut holders = Holders::EMPTY;
        for (index, (step, percent)) in steps.iter().enumerate() {
            take(&mut holders, *step);
            let found = holders.in_force().request.map_or(0, Request::number);
            assert_eq!(found, *percent, "after step {index}");
        }
    }

    #[test]
    fn scopes_end_in_any_order_and_end_their_own_request() {
        check(&[(Begin(1, 10), 10), (Begin(2, 20), 20), (Finish(2), 10), (Finish(1), 0)]);
        check(&[(Begin(1, 10), 10), (Begin(2, 20), 20), (Finish(1), 20), (Finish(2), 0)]);
        check(&[(Own(5), 5), (Begin(1, 10), 10), (Begin(2, 20), 20), (Finish(1), 20)]);
        check(&[(Finish(7), 0), (Own(5), 5), (Finish(7), 5)]);
    }

    #[test]
    fn a_request_in_a_scope_is_that_of_the_innermost_one() {
        check(&[(Begin(1, 10), 10), (Own(50), 50), (Finish(1), 0)]);
        check(&[(Begin(1, 10), 10), (Begin(2, 20), 20), (Own(50), 50), (Finish(2), 10)]);
        // The outer one has ended before.
        check(&[(Begin(1, 10), 10), (Begin(2, 20), 20), (Finish(1), 20), (Own(50), 50)]);
        check(&[(Own(5), 5), (Begin(1, 10), 10), (Own(0), 0), (Finish(1), 5), (Own(0), 0)]);
        // In a scope in which the machine decides.
        check(&[(Own(5), 5), (Begin(1, 0), 0), (Finish(1), 5)]);
    }

    #[test]
    fn locks_are_released_in_any_order_and_end_their_own_request() {
        check(&[(Hold(SECTION, 90), 90), (Hold(OTHER, 80), 80), (Release(SECTION), 80)]);
        check(&[
            (Hold(SECTION, 90), 90),
            (Begin(1, 10), 10),
            (Release(SECTION), 10),
            (Finish(1), 0),
        ]);
        check(&[
            (Begin(1, 10), 10),
            (Hold(SECTION, 90), 90),
            (Finish(1), 90),
            (Release(SECTION), 0),
        ]);
        // Shared twice.
        check(&[(Hold(SECTION, 90), 90), (Hold(SECTION, 90), 90), (Release(SECTION), 90)]);
        check(&[(Release(SECTION), 0), (Own(5), 5), (Release(SECTION), 5), (Stay(1), 5)]);
    }

    #[test]
    fn what_locks_request_between_sections_counts_outside_of_all() {
        // The inner lock's end does not slow down the section of the outer one.
        check(&[
            (Hold(BETWEEN, 1), 1),
            (Hold(SECTION, 90), 90),
            (Hold(OTHER, 80), 80),
            (Hold(Holder::Between(2), 2), 90),
            (Hold(BETWEEN, 1), 1),
            (Release(Holder::Between(2)), 1),
            (Release(BETWEEN), 0),
        ]);
        // Nor does the outer one's that of the inner one.
        check(&[(Hold(SECTION, 90), 90), (Hold(OTHER, 80), 80), (Hold(BETWEEN, 1), 80)]);
        // Nor a scope around the lock; of that and the thread's own, the last one counts.
        check(&[(Begin(1, 10), 10), (Hold(BETWEEN, 1), 10), (Finish(1), 1), (Own(5), 5)]);
        check(&[(Own(5), 5), (Hold(BETWEEN, 1), 1), (Release(BETWEEN), 5)]);
        check(&[(Own(5), 5), (Hold(BETWEEN, 1), 1), (Own(6), 6), (Hold(BETWEEN, 1), 1)]);
        check(&[(Hold(SECTION, 90), 90), (Stay(1), 90), (Release(BETWEEN), 0)]);
        check(&[
            (Hold(BETWEEN, 1), 1),
            (Hold(SECTION, 90), 90),
            (Own(0), 90),
            (Release(SECTION), 0),
        ]);
    }

    #[test]
    fn a_thread_s_own_request_in_a_section_counts_at_once_until_the_next_one() {
        check(&[(Hold(SECTION, 90), 90), (Own(5), 5), (Release(SECTION), 5)]);
        check(&[
            (Hold(SECTION, 90), 90),
            (Own(5), 5),
            (Hold(BETWEEN, 1), 1),
            (Release(BETWEEN), 5),
        ]);
    }

    #[test]
    fn a_wait_and_a_visit_end_by_themselves() {
        let wait = Holder::Wait;
        check(&[(Hold(wait, 1), 1), (Hold(SECTION, 90), 90), (Release(wait), 90)]);
        check(&[(Visit(90), 90), (Begin(1, 10), 10), (Home, 10), (Finish(1), 0)]);
        check(&[(Begin(1, 10), 10), (Visit(90), 90), (Finish(1), 90), (Home, 0)]);
    }

    /// Whatever parts of a program do, nothing is in force once all of them have ended.
    #[test]
    fn nothing_is_left_when_all_have_ended() {
        let mut random = fastrand::Rng::with_seed(27);
        for round in 0..2000 {
            let mut holders = Holders::EMPTY;
            let mut ends = Vec::new();
            for number in 1..random.u64(2..12) {
                let percent = random.u8(1..=100);
                let lock = random.usize(1..4);
                let (begin, end) = match random.u8(0..6) {
                    0 => (Own(percent), Own(0)),
                    1 => (Begin(number, percent), Finish(number)),
                    2 => (Hold(Holder::Section(lock), percent), Release(Holder::Section(lock))),
                    3 => (Hold(Holder::Between(lock), percent), Own(0)),
                    4 => (Hold(Holder::Wait, percent), Release(Holder::Wait)),
                    _ => (Visit(percent), Home),
                };
                take(&mut holders, begin);
                ends.push(end);
                if random.bool() {
                    let end = ends.swap_remove(random.usize(0..ends.len()));
                    take(&mut holders, end);
                }
            }
            random.shuffle(&mut ends);
            ends.iter().for_each(|end| take(&mut holders, *end));
            // In a scope, `Own` is about that one.
            take(&mut holders, Own(0));
            assert!(holders.0.is_empty(), "round {round}: {holders:?}");
        }
    }
}
