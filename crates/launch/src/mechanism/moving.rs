//! Runs calls of an unmodified program on dedicated cores: what `--migrate`, `--delegate` and
//! `--auto` have in common.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dimmer_hook::PlannedEntry;
use dimmer_host::root::format_cpu_list;
use dimmer_host::{affinity, topology};
use dimmer_observe::{FunctionPlace, Observer, Tally, Times};
use dimmer_policy::cost::{CallCost, Running};
use dimmer_policy::headroom::{Cpus, Headroom, most_faster};
use dimmer_policy::moving::{self, Calls, Decision, ENOUGH, Verdict, Word};
use dimmer_policy::narrowing::Shown;
use dimmer_processor::units::CpuId;

use super::auto::{self, Auto};
use super::interval::{Interval, LOOSE_SPARE, SPARE};
use super::unhooking::Unhooking;
use super::{End, How, Mechanism, Prepared, Setup, delegate, migrate, narrow, specialise};
use crate::account::{Account, Function, Summary, Traced};
use crate::chosen::{self, Chosen};
use crate::forms;
use crate::leaves::NoLeaf;
use crate::named::{Planned, Plans};
use crate::note::{Note, Notes};
use crate::trips::{self, TripError};
use crate::used_cores::UsedCores;
use crate::{LaunchError, cores, preload};

/// Looks from one decision to the next: a tenth of a second, or half of one.
const LOOKS: u32 = 5;

/// A program whose calls are moved, and what is known about it.
#[derive(Debug)]
struct Moving {
    observer: Observer,
    how: How,
    /// Where calls move to; keeps the program's own threads off these CPUs.
    used_cores: UsedCores,
    functions: Vec<Moved>,
    /// Whether calls of any of them should be moved.
    is_any_wanted: bool,
    /// The number of the function of each entry.
    numbers: BTreeMap<FunctionPlace, usize>,
    /// Functions whose calls stay because they are no leaf functions.
    others: Vec<NoLeaf>,
    takes: Takes,
    /// When the counts are read, and when decisions are made.
    looks: Interval,
    decisions: Interval,
    /// When it last changed which calls move.
    changed: Instant,
    /// Whether what threads do is kept.
    is_traced: bool,
    /// What makes the final decision besides the observed calls.
    auto: Option<Auto>,
    /// Hooks that cannot help are taken out, where trials decide: elsewhere all calls are to be
    /// counted.
    unhooking: Option<Unhooking>,
    /// Whether trials may show a gain.
    headroom: Headroom,
    /// Where the hooks read what to hook; removed when this is dropped.
    _plans: Plans,
}

/// Time that an empty call takes, there and back (ns).
#[derive(Clone, Copy, Debug)]
pub(super) struct Takes {
    pub(super) migrated_ns: f64,
    delegated_ns: f64,
}

/// A function whose calls may be moved, and the decisions about it.
#[derive(Debug)]
pub(super) struct Moved {
    planned: Planned,
    /// The places of its entries.
    pub(super) places: Vec<FunctionPlace>,
    pub(super) decision: Decision,
    /// Whether its calls should be moved, by what was seen of them and by the server.
    is_wanted: bool,
    /// Whether its calls are moved now.
    pub(super) is_moved: bool,
    /// Whether a hook of it was taken out.
    pub(super) is_unhooked: bool,
    /// The number of steps in which the policy server wanted its calls moved, and of all steps.
    server: (u64, u64),
    /// What its calls cost the code after them by the model, if that counts.
    cost: Option<CallCost>,
    /// Whether it is known to use 512-bit registers.
    has_zmm: bool,
    /// The tally of all its calls at the last verdict.
    told: Tally,
    /// The times of its moved calls at the last verdict before which enough were timed.
    priced: Times,
    /// Duration of a call at the last verdict (ns): the median of the calls that were timed in
    /// place.
    lasted_ns: Option<f64>,
}

/// Chooses functions and cores, measures what moving takes, and sets up the program's environment
/// so that its calls are moved. `None` if there is nothing to move.
pub(super) fn prepare(setup: &mut Setup<'_>) -> Result<Prepared, LaunchError> {
    let Some(chosen) = chosen::choose(setup)? else { return auto::without_calls(setup) };
    let cpus = cores(setup.root, setup.request.cpus.as_deref())?;
    let Chosen { plans, costs, model, have_zmm, key, others } = chosen;
    let begin = || Auto::begin(setup, key, &plans.functions);
    let mut auto = setup.how.is_auto.then(begin).transpose()?;
    let mut tried = cpus.len();
    let mut cpus = cpus;
    if let Some(auto) = &mut auto {
        (cpus, tried) = auto.cores(setup, cpus)?;
    }
    let Some(takes) = Takes::measure(setup, &cpus[..tried])? else { return Ok(None) };
    let mut observer = match Observer::new() {
        Ok(observer) => observer,
        Err(why) => {
            (setup.notes)(Note::NoCallMoves { how: setup.how, why: why.to_string() });
            return Ok(None);
        }
    };
    if setup.request.is_traced {
        observer.trace(BTreeSet::new());
    }
    set_environment(setup, &observer, &plans, &cpus)?;
    let headroom = Headroom::new(comparable(setup, &cpus), |cpus| {
        let of = |(model, (level, cost)): (_, &(_, _))| most_faster(model, *level, cost, cpus);
        let all = costs.iter().map(|cost| model.as_ref().zip(cost.as_ref()));
        all.map(|cost| cost.map_or(f64::INFINITY, of)).collect()
    });
    let costs = costs.into_iter().map(|cost| cost.map(|(_, cost)| cost));
    let functions = plans.functions.iter().zip(costs).zip(have_zmm);
    let functions: Vec<Moved> = functions.map(Moved::new).collect();
    let numbered = functions.iter().enumerate();
    let numbers = numbered
        .flat_map(|(number, moved)| moved.places.iter().map(move |place| (place.clone(), number)))
        .collect();
    if let Some(auto) = &mut auto {
        let is_delegated = |planned: &Planned| planned.is_delegated();
        let leaves = plans.functions.iter().filter(|planned| is_delegated(planned)).count();
        auto.begin_trials(setup, leaves > 0, leaves < plans.functions.len())?;
    }
    let is_narrow = auto.as_ref().is_some_and(Auto::is_narrow);
    let is_tried = auto.as_ref().is_some_and(Auto::is_tried) && !setup.request.is_traced;
    if !is_narrow {
        note_functions(setup, &functions, takes, &cpus);
    }
    if let Some(auto) = &auto {
        auto.note(&cpus, setup.notes);
    }
    if is_narrow {
        narrow::apply(setup)?;
    }
    Ok(Some(Box::new(Moving {
        used_cores: UsedCores::new(setup.root, &cpus, observer.directory()),
        observer,
        how: setup.how,
        is_traced: setup.request.is_traced,
        auto,
        unhooking: is_tried.then(|| Unhooking::new(functions.len())),
        functions,
        is_any_wanted: false,
        numbers,
        others,
        takes,
        looks: Interval::new(),
        decisions: Interval::new(),
        changed: Instant::now(),
        headroom,
        _plans: plans,
    })))
}

/// The program's CPUs, if they are known and can be counted alike.
fn comparable(setup: &Setup<'_>, dedicated: &[CpuId]) -> Option<Cpus> {
    Cpus::new(&topology::read(setup.root).ok()?, &affinity::allowed().ok()?, dedicated)
}

impl Takes {
    /// Tries to move calls to these CPUs. `None` if that is not possible, which is noted.
    pub(super) fn measure(
        setup: &mut Setup<'_>,
        cpus: &[CpuId],
    ) -> Result<Option<Self>, LaunchError> {
        let trips = match trips::round_trips(setup.root, cpus) {
            Ok(trips) => trips,
            Err(why @ (TripError::Ledger(_) | TripError::Directory(_))) => {
                (setup.notes)(Note::NoCallMoves { how: setup.how, why: why.to_string() });
                return Ok(None);
            }
            Err(why) => return Err(LaunchError::Trips(why)),
        };
        let (migrated, delegated) = (trips.migrated.estimate(), trips.delegated.estimate());
        let (migrated, delegated) = migrated.zip(delegated).ok_or(LaunchError::NoTrip)?;
        Ok(Some(Self { migrated_ns: migrated.median, delegated_ns: delegated.median }))
    }

    /// For calls of this function (ns).
    fn of(self, planned: &Planned) -> f64 {
        if planned.is_delegated() { self.delegated_ns } else { self.migrated_ns }
    }
}

/// Sets the variables by which Dimmer's library in the program knows what to hook and where calls
/// go. None move yet.
pub(super) fn set_environment(
    setup: &mut Setup<'_>,
    observer: &Observer,
    plans: &Plans,
    cpus: &[CpuId],
) -> Result<(), LaunchError> {
    let command = &mut setup.command;
    command.envs(observer.environment(&[], Some(plans.directory.path())));
    command.env(dimmer_hook::MOVE, "none");
    command.env(dimmer_runtime::CORES, format_cpu_list(cpus));
    command.env_remove(dimmer_runtime::ENTRANCE).env_remove(dimmer_runtime::wide::SPECIALISE);
    preload::preload(command)
}

fn note_functions(setup: &mut Setup<'_>, functions: &[Moved], takes: Takes, cpus: &[CpuId]) {
    let delegated = functions.iter().filter(|moved| moved.planned.is_delegated()).count();
    let How { migrates, delegates, .. } = setup.how;
    for (is_asked, how, functions, takes_ns) in [
        (delegates, delegate::HOW, delegated, takes.delegated_ns),
        (migrates, migrate::HOW, functions.len() - delegated, takes.migrated_ns),
    ] {
        // Under `--auto`, a kind of which there is no function is no mechanism.
        if is_asked && (functions > 0 || !setup.how.is_auto) {
            (setup.notes)(Note::MayMove { how, functions, cpus: cpus.to_vec(), takes_ns });
        }
    }
}

impl Moved {
    fn new(((planned, cost), has_zmm): ((&Planned, Option<CallCost>), bool)) -> Self {
        Self {
            planned: planned.clone(),
            places: planned.places(),
            cost,
            has_zmm,
            decision: Decision::default(),
            is_wanted: false,
            is_moved: false,
            is_unhooked: false,
            server: (0, 0),
            told: Tally::default(),
            priced: Times::default(),
            lasted_ns: None,
        }
    }

    /// Its tally, of all its entries.
    pub(super) fn tally<'a>(&self, of: impl FnMut(&FunctionPlace) -> Option<&'a Tally>) -> Tally {
        let mut all = Tally::default();
        self.places.iter().filter_map(of).for_each(|one| all.merge(one));
        all
    }
}

impl Moving {
    /// Whether the program has narrower code, so that no call moves.
    fn is_narrow(&self) -> bool {
        self.auto.as_ref().is_some_and(Auto::is_narrow)
    }

    /// Decides which calls should be moved, by what was seen of them and by the server.
    fn judge(&mut self, notes: &mut Notes<'_>) {
        let tallies = self.observer.so_far();
        // Of thousands of functions, some hundred are called.
        let (mut sums, mut called) =
            (vec![Tally::default(); self.functions.len()], BTreeSet::new());
        for (place, tally) in &tallies {
            if let Some(number) = self.numbers.get(place) {
                sums[*number].merge(tally);
                called.insert(*number);
            }
        }
        let how = self.how;
        let misfit = self.auto.as_mut().and_then(Auto::tend);
        if let Some((server, own)) = misfit {
            notes(Note::ServerMisfit { how, server, own });
        }
        let served = self.auto.as_ref().and_then(Auto::served);
        let is_served = served.is_some();
        let is_tried = self.auto.as_ref().is_some_and(Auto::is_tried);
        let all = self.functions.iter_mut().zip(&sums).enumerate();
        // Without a server, nothing happens to those that are not called.
        for (index, (moved, all)) in all.filter(|(_, (_, all))| is_served || all.calls > 0) {
            let new = |of: fn(&Tally) -> &Times| of(all).since(of(&moved.told));
            let (lasted, gaps) = (new(|tally| &tally.lasted), new(|tally| &tally.gap_after));
            let new_moved = all.moved.since(&moved.priced);
            let lasted_ns = lasted.quantile(0.5);
            let lost = moved
                .cost
                .as_ref()
                .map(|cost| cost.in_gaps(lasted.iter(), gaps.iter(), &Running::ALWAYS).total_ns());
            let calls = Calls {
                timed: lasted.measured(),
                lasted_ns,
                longest_ns: lasted.quantile(1.0),
                moved: new_moved.measured(),
                moved_ns: new_moved.quantile(0.5),
                costs_ns: lost.map(|lost| lost / gaps.calls().max(1.0)),
            };
            if let Some(served) = served {
                served.tell(index, all);
            }
            if moved.decision.step(&calls, self.takes.of(&moved.planned)) {
                // How long moved calls would have taken in place is not measured.
                (moved.told, moved.lasted_ns) = (all.clone(), lasted_ns.or(moved.lasted_ns));
                if calls.moved >= ENOUGH {
                    moved.priced = all.moved.clone();
                }
            }
            let word = served.map_or(Word::Unasked, |served| served.word(index));
            moved.server.0 += u64::from(word == Word::Move);
            moved.server.1 += 1;
            moved.is_wanted = if is_tried {
                // Trials have calls stay often enough to time them.
                moved.decision.verdict() == Verdict::Move
            } else {
                moved.decision.moves(word)
            };
        }
        self.is_any_wanted = self.functions.iter().any(|moved| moved.is_wanted);
        if let Some(unhooking) = &mut self.unhooking {
            unhooking.step(&mut self.functions, &called, &tallies, &mut self.observer);
        }
        for (process, ledger) in self.observer.processes() {
            self.used_cores.know(process, ledger);
        }
        self.measure_headroom(&sums);
        if let Some(auto) = &mut self.auto {
            auto.publish();
        }
    }

    /// Finds out which mechanisms cannot gain; `sums` are the tallies of all functions by now.
    fn measure_headroom(&mut self, sums: &[Tally]) {
        let Some(auto) = self.auto.as_mut().filter(|auto| auto.is_tried()) else { return };
        let now = auto.now();
        if !self.functions.iter().any(|function| function.is_moved) {
            let in_calls_ns = || sums.iter().map(|tally| tally.lasted.sum()).collect();
            self.headroom.read(now, || self.used_cores.on_cpu(), in_calls_ns);
        }
        let functions = &self.functions;
        auto.rule_out(|mechanism| {
            let would_move = |function: &Moved| {
                function.is_wanted && mechanism.moves(function.planned.is_delegated())
            };
            let numbered = functions.iter().enumerate();
            let moved = numbered.filter(|(_, function)| would_move(function));
            self.headroom.rules_out(now, moved.map(|(number, _)| number))
        });
    }

    /// Moves the calls that should be moved now, and no others.
    fn apply(&mut self) {
        // By the model, narrower code costs the code after it nothing.
        let is_narrow = self.is_narrow();
        let auto = self.auto.as_ref();
        let mut changes = Vec::new();
        for moved in &mut self.functions {
            let is_delegated = moved.planned.is_delegated();
            let may_move = auto.is_none_or(|auto| auto.may_move(is_delegated));
            let now = moved.is_wanted && may_move && !is_narrow;
            if now != moved.is_moved {
                moved.is_moved = now;
                changes.extend(moved.places.iter().map(|place| (place.clone(), now)));
            }
        }
        let is_wanted = self.functions.iter().any(|moved| moved.is_moved);
        // A program under none has the whole machine at once, or none would not be what is
        // measured.
        let of_trial = if is_wanted { self.used_cores.cpus().len() } else { 0 };
        let dedicated = auto.filter(|_| !is_narrow).and_then(|auto| match auto.served() {
            Some(served) => Some(served.dedicated()),
            None => auto.is_tried().then_some(of_trial),
        });
        // The program must leave the cores before calls move there.
        self.observer.use_cores(self.used_cores.step(dedicated, is_wanted));
        if !changes.is_empty() {
            self.changed = Instant::now();
            self.headroom.forget_last();
            self.observer.decide(changes);
        }
    }

    /// The part of a CPU's time for looks, and for decisions: more than usual if the hooks that are
    /// about to go take more.
    fn spare(&self) -> f64 {
        let least = if self.is_settled() { LOOSE_SPARE } else { SPARE };
        self.unhooking.as_ref().map_or(least, |unhooking| unhooking.takes().max(least))
    }

    /// Whether nothing has changed for a while, nor is about to.
    fn is_settled(&self) -> bool {
        let is_counting = self.unhooking.as_ref().is_some_and(Unhooking::is_counting);
        moving::is_settled(self.changed.elapsed().into(), is_counting)
    }
}

impl Mechanism for Moving {
    fn cpus(&self) -> Option<&[CpuId]> {
        (!self.is_narrow()).then_some(self.used_cores.cpus())
    }

    fn started(&mut self, process: u32) {
        self.auto.iter_mut().for_each(|auto| auto.started(process));
    }

    fn stood_still(&mut self, time: Duration) {
        self.auto.iter_mut().for_each(|auto| auto.stood_still(time));
    }

    /// Reads the counts of the hooks, decides every few looks ([`LOOKS`]), and changes mechanisms
    /// when a trial begins or ends.
    fn look(&mut self, notes: &mut Notes<'_>) {
        self.observer.follow_loosely(self.is_settled());
        let (interval, spare) = (self.observer.interval(), self.spare());
        // Trials wake it in between.
        let is_due = self.looks.is_due(interval / 2, spare) || self.is_traced;
        if is_due {
            self.looks.take(|| self.observer.look());
        }
        let is_due = is_due && self.decisions.is_due(interval * LOOKS, spare);
        if is_due {
            let mut decisions = self.decisions;
            decisions.take(|| self.judge(notes));
            self.decisions = decisions;
        }
        // With threads that cannot be counted, calls seem to become fewer as others end.
        let is_measure = self.observer.threads_left_out() == 0
            && self.unhooking.as_ref().is_none_or(Unhooking::is_counting);
        let (calls, can_gain) = (|| self.observer.calls_now(), self.is_any_wanted);
        let is_other =
            self.auto.as_mut().is_some_and(|auto| auto.step(calls, can_gain, is_measure, notes));
        if is_due || is_other {
            self.apply();
        }
    }

    fn next_look(&self) -> Duration {
        let interval = self.observer.interval();
        let own = if self.is_traced { interval } else { self.looks.due_in(interval, self.spare()) };
        self.auto.as_ref().map_or(own, |auto| own.min(auto.next_look()))
    }

    fn finish(mut self: Box<Self>, end: &End, notes: &mut Notes<'_>) -> Summary {
        let spent = end.spent;
        // Processes that outlive the program run their calls in place.
        let places = self.functions.iter().flat_map(|moved| moved.places.clone());
        self.observer.decide(places.map(|place| (place, false)));
        self.used_cores.end();
        let is_narrow = self.is_narrow();
        let observed = self.observer.finish();
        let calls = observed.functions();
        let is_served = self.auto.as_ref().is_some_and(|auto| auto.served().is_some());
        let on_cpu_ns = spent.usage.on_cpu.as_secs_f64() * 1e9;
        let seen = |moved: &Moved| moved.tally(|place| calls.get(place));
        let tallies: Vec<Tally> = self.functions.iter().map(seen).collect();
        let all = || self.functions.iter().zip(&tallies);
        let function = |(moved, seen): (&Moved, &Tally)| {
            let (wanted, steps) = moved.server;
            Function {
                name: moved.planned.title.clone(),
                calls: seen.calls,
                lasted_ns: moved.lasted_ns,
                moved_ns: seen.moved.quantile(0.5),
                verdict: moved.decision.verdict(),
                is_unhooked: moved.is_unhooked,
                server_moves_ratio: is_served.then(|| wanted as f64 / steps.max(1) as f64),
            }
        };
        let unhooking = self.unhooking.as_ref();
        let completed = unhooking.map(|unhooking| unhooking.completed(&self.functions, &tallies));
        let completed = completed.as_ref().unwrap_or(&tallies);
        let costs = self.functions.iter().zip(completed).filter(|_| !is_narrow);
        let costs =
            costs.filter_map(|(moved, seen)| Some((moved.cost.as_ref()?, moved.has_zmm, seen)));
        let forecast = forms::forecast(costs, spent.usage);
        let name = |planned: &Planned| format!("{} in {}", planned.title, planned.file.display());
        let shown = || Shown {
            calls: all()
                // Later runs compare numbers of calls: only if all were counted.
                .filter(|(_, seen)| seen.calls > 0 && !unhooking.is_some_and(Unhooking::is_begun))
                .map(|(moved, seen)| (name(&moved.planned), seen.calls))
                .collect(),
            forecast,
            ..Shown::default()
        };
        let mut account = Account::nothing(self.how);
        // The program may have written any number there.
        let sum = |sum: u64, number: u64| sum.saturating_add(number);
        account.calls = calls.values().map(|tally| tally.calls).fold(0, sum);
        account.moved = observed.threads.iter().map(|thread| thread.moved).fold(0, sum);
        let taken_ns = all().map(|(_, seen)| taken_ns(seen)).sum::<Option<f64>>();
        // Not all moved calls may have been timed.
        let timed: f64 = tallies.iter().map(|seen| seen.moved.calls()).sum();
        let moving_ns =
            taken_ns.map(|ns| if timed > 0.0 { ns / timed * account.moved as f64 } else { 0.0 });
        account.functions = all().map(function).collect();
        account.is_narrow = is_narrow;
        account.narrow_gain_ratio = forecast;
        if let Some(auto) = self.auto.take() {
            let (forms, tried) = auto.finish(end, notes);
            account.tried = tried;
            account.next = forms.and_then(|forms| forms.keep(end, moving_ns, shown()));
        }
        account.moving_ratio = moving_ns.filter(|_| on_cpu_ns > 0.0).map(|ns| ns / on_cpu_ns);
        account.is_served = is_served;
        account.others = std::mem::take(&mut self.others);
        account.problems = specialise::problems(&observed);
        let named = |moved: &Moved| {
            let places = moved.places.iter();
            places.map(|place| (place.clone(), moved.planned.title.clone())).collect::<Vec<_>>()
        };
        let names = || self.functions.iter().flat_map(named).collect();
        account.traced = self.is_traced.then(|| Box::new(Traced { names: names(), observed }));
        Summary::Calls(account)
    }
}

/// CPU time that moving has cost the moved and timed calls of a function (ns). During a moved call
/// its thread spins and a worker works, instead of the thread alone. Uses medians, since a thread
/// that waits for a CPU uses no CPU time. `None` if no call was timed in place.
fn taken_ns(seen: &Tally) -> Option<f64> {
    let Some(moved_ns) = seen.moved.quantile(0.5) else { return Some(0.0) };
    Some((2.0 * moved_ns - seen.lasted.quantile(0.5)?).max(0.0) * seen.moved.calls())
}

impl Planned {
    /// The places of the function's entries.
    pub(super) fn places(&self) -> Vec<FunctionPlace> {
        let file: Arc<Path> = self.file.as_path().into();
        let place = |entry: &PlannedEntry| FunctionPlace {
            file: Arc::clone(&file),
            address: entry.address,
        };
        self.entries.iter().map(place).collect()
    }

    /// Whether the calls through all entries are delegated rather than migrated with their thread.
    fn is_delegated(&self) -> bool {
        self.entries.iter().all(|entry| entry.leaf.is_some())
    }
}
