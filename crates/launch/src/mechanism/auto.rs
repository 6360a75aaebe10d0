//! `--auto`: calls are delegated or migrated, locks are boosted, or the program has narrower code.
//!
//! Earlier runs decide whether it has narrower code, which cannot be changed while it runs. Of the
//! others, a policy server decides which calls move, because its cores are for all of its programs.
//! Without one, trials decide which mechanism is in force ([`Trials`]).

use std::time::{Duration, Instant};

use dimmer_host::affinity;
use dimmer_observe::INTERVAL;
use dimmer_policy::headroom::RuledOut;
use dimmer_policy::narrowing::Form;
use dimmer_processor::units::{CpuId, Time};
use dimmer_protocol::Hello;

use super::boost::{self, Observing};
use super::interval::Interval;
use super::{Definition, End, How, Mechanism, Prepared, Setup, moving, narrow};
use crate::LaunchError;
use crate::account::{Account, Summary};
use crate::chosen::Key;
use crate::forms::Forms;
use crate::named::Planned;
use crate::note::{Note, Notes};
use crate::served::Served;
use crate::trials::{Switched, Trials, Tried};

/// Whatever the program gains by.
pub(super) const DEFINITION: Definition = Definition {
    name: "auto",
    summary: "any of these, as trials (or the policy daemon) and earlier runs show that the program gains",
    moves: Some(How { migrates: true, delegates: true, is_auto: true, ..How::NONE }),
    prepare: moving::prepare,
};

/// The part of a CPU's time in which work is counted. It is counted the most often in trials, and
/// what that takes speaks against whatever is tried: with 500 threads, a count takes a millisecond
/// or two.
const COUNTING: f64 = 0.01;

/// What decides besides the calls that are observed.
#[derive(Debug)]
pub(super) struct Auto {
    /// The policy server, if there is one.
    served: Option<Served>,
    /// Whether the program has narrower code, if this run decides that.
    forms: Option<Forms>,
    /// Which mechanism is in force, if no server decides.
    trials: Option<Trials>,
    begun: Instant,
    has_stood_still: bool,
    counts: Interval,
    /// The program's locks, if their holders can be boosted here.
    boosting: Option<Observing>,
}

/// A program of which no call can move.
#[derive(Debug)]
struct WithoutCalls(Auto);

/// Prepares a program of which no call can move. `None` if its locks cannot be boosted either.
pub(super) fn without_calls(setup: &mut Setup<'_>) -> Result<Prepared, LaunchError> {
    if !setup.how.is_auto {
        return Ok(None);
    }
    let mut auto = Auto::new(None);
    auto.begin_trials(setup, false, false)?;
    Ok(auto.boosting.is_some().then(|| Box::new(WithoutCalls(auto)) as Box<dyn Mechanism>))
}

impl Mechanism for WithoutCalls {
    fn cpus(&self) -> Option<&[CpuId]> {
        None
    }

    fn started(&mut self, process: u32) {
        self.0.started(process);
    }

    fn stood_still(&mut self, time: Duration) {
        self.0.stood_still(time);
    }

    fn look(&mut self, notes: &mut Notes<'_>) {
        self.0.step(|| 0, false, true, notes);
    }

    fn next_look(&self) -> Duration {
        self.0.next_look().min(INTERVAL)
    }

    fn finish(self: Box<Self>, end: &End, notes: &mut Notes<'_>) -> Summary {
        let (_, tried) = self.0.finish(end, notes);
        Summary::Calls(Account { tried, ..Account::nothing(DEFINITION.moves.unwrap_or_default()) })
    }
}

impl Auto {
    fn new(forms: Option<Forms>) -> Self {
        let begun = Instant::now();
        let (has_stood_still, counts) = (false, Interval::new());
        Self { served: None, forms, trials: None, begun, has_stood_still, counts, boosting: None }
    }

    /// Decides the program's code, and connects to a policy server.
    pub(super) fn begin(
        setup: &Setup<'_>,
        key: Option<Key>,
        functions: &[Planned],
    ) -> Result<Self, LaunchError> {
        let is_asked = |name| setup.asked.iter().any(|definition| definition.name == name);
        // If narrower code is asked for as well, there is nothing to decide.
        let key = key.filter(|_| !is_asked(narrow::DEFINITION.name));
        let decide = |key| Forms::decide(key, setup.request, setup.program);
        let mut auto = Self::new(key.map(decide).transpose()?);
        // With narrower code no call moves, so the server would dedicate cores for nothing.
        if !auto.is_narrow() {
            let hello = |name| Hello::Serve { name };
            let served = Served::ask(hello, setup.program, functions);
            auto.served = Some(served).filter(Served::is_there);
        }
        Ok(auto)
    }

    /// Starts trials of the mechanisms between which can be switched, if no server decides.
    /// `has_leaves`: whether calls of leaf functions can move; `has_others`: of other functions.
    pub(super) fn begin_trials(
        &mut self,
        setup: &mut Setup<'_>,
        has_leaves: bool,
        has_others: bool,
    ) -> Result<(), LaunchError> {
        if self.served.is_none() && !self.is_narrow() {
            self.boosting = boost::prepare_switched(setup)?;
            let mechanisms = Switched::all(has_leaves, has_others, self.boosting.is_some());
            self.trials = Some(Trials::new(mechanisms, Time::START));
        }
        Ok(())
    }

    /// Whether trials decide.
    pub(super) const fn is_tried(&self) -> bool {
        self.trials.is_some()
    }

    /// Whether calls may move, by the mechanism in force, that are delegated or that migrate.
    pub(super) fn may_move(&self, is_delegated: bool) -> bool {
        self.trials.as_ref().is_none_or(|trials| trials.in_force().moves(is_delegated))
    }

    /// Sets which of the mechanisms that move calls are not tried from now on, and why.
    pub(super) fn rule_out(&mut self, why: impl Fn(Switched) -> Option<RuledOut>) {
        if let Some(trials) = &mut self.trials {
            let moves_calls = |mechanism: &Switched| *mechanism != Switched::Boost;
            trials.rule_out(|mechanism| Some(mechanism).filter(moves_calls).and_then(&why));
        }
    }

    /// The program has stood still for a time: that counts for nothing, and a trial that was under
    /// way shows nothing.
    pub(super) fn stood_still(&mut self, time: Duration) {
        self.begun += time;
        self.has_stood_still = true;
    }

    /// The time since it was begun, without that in which the program stood still.
    pub(super) fn now(&self) -> Time {
        u64::try_from(self.begun.elapsed().as_nanos()).map_or(Time::MAX, Time::from_ns)
    }

    /// The program was started, as this process.
    pub(super) fn started(&mut self, process: u32) {
        self.boosting.iter_mut().for_each(|boosting| boosting.started(process));
    }

    /// Measures the program's work and goes on with the trials, if that is due. Returns whether
    /// another mechanism is in force from now on.
    ///
    /// * `calls`: calls up to now of the functions whose calls may move.
    /// * `can_gain`: whether any of these calls are long enough to move.
    /// * `is_measure`: whether their number is a measure of the program's work.
    pub(super) fn step(
        &mut self,
        calls: impl FnOnce() -> u64,
        can_gain: bool,
        is_measure: bool,
        notes: &mut Notes<'_>,
    ) -> bool {
        if let Some(boosting) = &mut self.boosting {
            boosting.look(notes);
        }
        let now = self.now();
        let may_count = self.counts.is_due(Duration::ZERO, COUNTING);
        let due = |trials: &&mut Trials| may_count && now >= trials.next();
        let Some(trials) = self.trials.as_mut().filter(due) else {
            return false;
        };
        // Either is a unit of its own, and counts if there is any.
        let mut work = Vec::new();
        self.counts.take(|| work.push(calls() as f64));
        work.extend(self.boosting.as_mut().map(|boosting| boosting.taken() as f64));
        let is_measure = is_measure && !std::mem::take(&mut self.has_stood_still);
        let is_other = trials.step(now, &work, can_gain || self.boosting.is_some(), is_measure);
        if let Some(boosting) = &mut self.boosting {
            boosting.switch(trials.in_force() == Switched::Boost);
        }
        is_other
    }

    /// The time until [`Self::step`] is due.
    pub(super) fn next_look(&self) -> Duration {
        let until = |trials: &Trials| Duration::from_nanos((trials.next() - self.now()).ns());
        let next = self.trials.as_ref().map(until);
        let next = next.map(|next| next.max(self.counts.due_in(Duration::ZERO, COUNTING)));
        let of_locks = self.boosting.as_ref().map_or(Duration::MAX, |_| INTERVAL);
        next.map_or(of_locks, |next| of_locks.min(next))
    }

    /// Gives back the machine's clocks. Returns the program's code, and what became of trials.
    pub(super) fn finish(self, end: &End, notes: &mut Notes<'_>) -> (Option<Forms>, Vec<Tried>) {
        let now = self.now();
        if let Some(boosting) = self.boosting {
            Box::new(boosting).finish(end, notes);
        }
        (self.forms, self.trials.map_or_else(Vec::new, |trials| trials.finish(now)))
    }

    /// Whether the program is to have narrower code.
    pub(super) fn is_narrow(&self) -> bool {
        self.forms.as_ref().is_some_and(|forms| forms.form == Form::Narrow)
    }

    /// The policy server, if there is one.
    pub(super) const fn served(&self) -> Option<&Served> {
        self.served.as_ref()
    }

    /// The CPUs that calls go to, and how many of the first of them to measure on: `own` if the
    /// user has named them, or if the server has none.
    pub(super) fn cores(
        &mut self,
        setup: &Setup<'_>,
        own: Vec<CpuId>,
    ) -> Result<(Vec<CpuId>, usize), LaunchError> {
        let tried = own.len();
        let served = self.served.as_mut().filter(|_| setup.request.cpus.is_none());
        let Some(served) = served else { return Ok((own, tried)) };
        let all = served.cores();
        let (cpus, tried) = if all.is_empty() {
            (own, tried)
        } else if setup.request.is_dedicated {
            return Err(LaunchError::ServerCoresShared);
        } else {
            // They are the ones for the calls of all programs.
            let allowed = affinity::allowed().map_err(LaunchError::Affinity)?;
            let most = allowed.len().saturating_sub(1);
            let usable = all.into_iter().take_while(|cpu| allowed.contains(cpu));
            let usable: Vec<CpuId> = usable.take(most).collect();
            if usable.is_empty() {
                return Err(LaunchError::ServerCoresForbidden);
            }
            // They may be all CPUs but one, and one is enough to measure what a move takes.
            (usable, 1)
        };
        served.follow_only(&cpus);
        Ok((cpus, tried))
    }

    /// Notes what decides.
    pub(super) fn note(&self, cpus: &[CpuId], notes: &mut Notes<'_>) {
        if let Some(trials) = &self.trials {
            notes(Note::Trials { mechanisms: trials.mechanisms().to_vec() });
        } else if !self.is_narrow() {
            notes(Note::Server);
            let its = self.served.as_ref().map(Served::cores).filter(|its| !its.is_empty());
            if let Some(its) = its.filter(|its| its.iter().all(|cpu| !cpus.contains(cpu))) {
                notes(Note::ServerElsewhere { cpus: its });
            }
        }
        if let Some(forms) = &self.forms {
            notes(Note::Code { form: forms.form, reason: forms.reason });
        }
    }

    /// Looks for a server if the previous one is gone. Returns its cores and the program's if, from
    /// now on, calls cannot go there.
    pub(super) fn tend(&mut self) -> Option<(Vec<CpuId>, Vec<CpuId>)> {
        self.served.as_mut().and_then(Served::tend)
    }

    /// Names the functions to the server. Call it after the counts of all functions were written.
    pub(super) fn publish(&mut self) {
        if let Some(served) = &mut self.served {
            served.publish();
        }
    }
}
