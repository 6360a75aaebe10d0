//! "P-states": what threads request, and the clocks that come of it.

use dimmer_processor::model::{Domain, Transition};

use super::{Simulator, value};

/// Cores that share a clock. Of P-states, `None` is the fastest clock.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared {
    /// The request that counts.
    pstate: Option<usize>,
    /// The change of the clock to it: clocks (GHz) and moments.
    from_ghz: f64,
    to_ghz: f64,
    start_ns: f64,
    end_ns: f64,
}

impl Shared {
    pub(super) fn new(pstate: Option<usize>) -> Self {
        Self { pstate, ..Self::default() }
    }

    /// The equal steps of the change.
    fn steps(&self) -> f64 {
        ((self.to_ghz - self.from_ghz).abs() / 0.1 - 1e-6).ceil()
    }

    /// When a step is due, each in the middle of its part of the time.
    fn step_ns(&self, step: f64) -> f64 {
        let part_ns = (self.end_ns - self.start_ns) * (step + 0.5) / self.steps();
        self.start_ns + (part_ns * 1e3 + 1e-6).floor() / 1e3
    }
}

impl Simulator<'_> {
    /// A thread requests a P-state for its core.
    pub(super) fn asks_for_pstate(&mut self, core: usize, pstate: usize) {
        let before = self.requests[core].replace(pstate);
        if before == Some(pstate) {
            return;
        }
        let (request_ns, total_ns) = match self.transition(before.unwrap_or(0), pstate) {
            Some(Transition { request_ns, total_ns, .. }) => {
                (request_ns.as_ref().map_or(1000.0, |ns| ns.value as f64), value(total_ns))
            }
            None => (1000.0, 0.0),
        };
        let start_ns = self.keeps(core, request_ns);
        let kept_ns = start_ns + request_ns;
        let end_ns = (start_ns + total_ns).max(kept_ns);
        let counts = self.counts(core, Some(core)).unwrap();
        self.changes(core, counts, kept_ns, end_ns);
    }

    /// Cores may execute something that did not, or not any more.
    pub(super) fn rules_pstate(&mut self, core: usize) {
        if self.model.pstates.is_empty() {
            return;
        }
        let Some(counts) = self.counts(core, None) else { return };
        let Shared { pstate, .. } = self.shared[self.sharing(core)];
        let transition = self.transition(pstate.unwrap_or(0), counts.unwrap_or(0));
        let total_ns = transition.map_or(0.0, |transition| value(&transition.total_ns));
        self.changes(core, counts, self.now, self.now + total_ns);
    }

    /// The request that counts of the cores that share a clock with this one; `None`: none of them
    /// executes anything. `also` executes something.
    fn counts(&self, core: usize, also: Option<usize>) -> Option<Option<usize>> {
        let sharing = self.sharing(core);
        let cores = (0..self.cores.len()).filter(|other| self.sharing(*other) == sharing);
        let executing =
            cores.filter(|other| also == Some(*other) || !self.running_on(*other).is_empty());
        executing.map(|other| self.requests[other]).min()
    }

    fn changes(&mut self, core: usize, pstate: Option<usize>, start_ns: f64, end_ns: f64) {
        let sharing = self.sharing(core);
        if self.shared[sharing].pstate == pstate {
            return;
        }
        let fastest = self.clock(0, self.active_beside(core).max(1));
        let from_ghz = self.pstate_ghz(core).min(fastest);
        let to_ghz = self.ghz_of(pstate).min(fastest);
        self.shared[sharing] = Shared { pstate, from_ghz, to_ghz, start_ns, end_ns };
    }

    fn ghz_of(&self, pstate: Option<usize>) -> f64 {
        pstate.map_or(f64::INFINITY, |pstate| self.model.pstates[pstate].mhz.value as f64 / 1000.0)
    }

    /// The clock that requests allow a core (GHz).
    pub(super) fn pstate_ghz(&self, core: usize) -> f64 {
        let shared = &self.shared[self.sharing(core)];
        let all = shared.steps();
        let steps = (0..).map(f64::from).take_while(|step| *step < all);
        let done = steps.filter(|step| self.is_due(shared.step_ns(*step))).count() as f64;
        if done < all {
            shared.from_ghz + (shared.to_ghz - shared.from_ghz) * done / all
        } else {
            self.ghz_of(shared.pstate)
        }
    }

    /// When the clock of a core changes next.
    pub(super) fn pstate_changes(&self, core: usize) -> Option<f64> {
        let shared = &self.shared[self.sharing(core)];
        let steps = (0..).map(f64::from).take_while(|step| *step < shared.steps());
        steps.map(|step| shared.step_ns(step)).find(|ns| !self.is_due(*ns))
    }

    /// Whether requests, or software's acts, keep the core.
    pub(super) fn is_kept(&self, core: usize) -> bool {
        !self.is_due(self.kept_ns[core])
    }

    fn transition(&self, from: usize, to: usize) -> Option<&Transition> {
        let name = |pstate: usize| &self.model.pstates[pstate].name;
        let mut transitions = self.model.transitions.iter();
        let is_it = |one: &&Transition| one.from == *name(from) && one.to == *name(to);
        transitions.find(is_it)
    }

    /// The number of the cores that share a clock with this one.
    fn sharing(&self, core: usize) -> usize {
        match self.model.clock.domain.as_ref().map(|domain| domain.value) {
            Some(Domain::Package) => self.package(core),
            _ => core,
        }
    }
}
