//! `dimmer run --migrate` and `--delegate`: runs calls of an unmodified program on
//! dedicated cores.

use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::Context;
use dimmer_bench::hooked::{self, HookedError};
use dimmer_hook::PlannedEntry;
use dimmer_host::affinity;
use dimmer_host::cpusets;
use dimmer_host::root::{Root, format_cpu_list, parse_cpu_list};
use dimmer_host::topology;
use dimmer_observe::{FunctionPlace, Observer, Tally, Times};
use dimmer_policy::cost::CallCost;
use dimmer_policy::dedicated;
use dimmer_policy::moving::{Calls, Decision, Word};
use dimmer_policy::narrowing::{Form, Shown};
use dimmer_probe::stats::Estimate;
use dimmer_processor::units::CpuId;

use super::How;
use super::account::{Account, Function, Kept};
use super::chosen::{self, Chosen};
use super::exclusion::Exclusion;
use super::forms::{self, Forms, Spent};
use super::leaves::NoLeaf;
use super::served::Served;
use crate::args::Run;
use crate::named::{Planned, Plans};
use crate::{bad_input, launch};
use dimmer_report::number::{counted, time};

/// Interval of the decisions.
const STEP: Duration = Duration::from_millis(100);

/// A program whose calls are moved, and what is known about it.
#[derive(Debug)]
pub(super) struct Moving {
    observer: Observer,
    how: How,
    /// Where calls move to; keeps the program's own threads off these CPUs.
    exclusion: Exclusion,
    functions: Vec<Moved>,
    /// Functions whose calls stay because they are no leaf functions.
    others: Vec<NoLeaf>,
    /// Time that an empty call takes (ns): one that migrates with its thread, and one that is
    /// delegated.
    round_trip: Estimate,
    hand_over: Estimate,
    decided: Instant,
    /// The policy server that makes the final decision.
    served: Option<Served>,
    /// Whether the program has narrower code, if this command decides that.
    forms: Option<Forms>,
    /// Where the hooks read what to hook; removed when this is dropped.
    _plans: Plans,
}

/// A function whose calls may be moved, and the decisions about it.
#[derive(Debug)]
struct Moved {
    planned: Planned,
    decision: Decision,
    /// Whether its calls are moved now.
    is_moved: bool,
    /// The number of steps in which the policy server wanted its calls moved, and of all steps.
    server: (u64, u64),
    /// What its calls cost the code after them by the model, if that counts.
    cost: Option<CallCost>,
    /// Whether it is known to use 512-bit registers.
    has_zmm: bool,
    /// The tally of all its calls at the last verdict.
    told: Tally,
    /// Duration of a call at the last verdict (ns): the median of the calls that were timed in
    /// place.
    lasted_ns: Option<f64>,
}

impl Moving {
    /// Chooses functions and cores, measures what moving takes, and sets up the program's
    /// environment so that its calls are moved. `None` if there is nothing to move.
    pub(super) fn prepare(
        root: &Root,
        arguments: &Run,
        how: How,
        program: &launch::Program,
        command: &mut Command,
    ) -> anyhow::Result<Option<Self>> {
        let mut cpus = cores(root, arguments.cpus.cpus.as_deref())?;
        let mut tried = cpus.len();
        let chosen = chosen::choose(arguments, how, program)?;
        let Some(Chosen { plans, costs, have_zmm, key, others }) = chosen else {
            return Ok(None);
        };
        let is_open = how.is_served && !arguments.narrow;
        let decide = |key| Forms::decide(key, arguments, program);
        let forms = key.filter(|_| is_open).map(decide).transpose()?;
        let is_narrow = forms.as_ref().is_some_and(|forms| forms.form == Form::Narrow);
        // With narrower code no call moves, so the server would dedicate cores for nothing.
        let asks = how.is_served && !is_narrow;
        let mut served = asks.then(|| Served::connect(program, &plans.functions)).flatten();
        // If the server has cores, they are the ones for the calls of all programs.
        let its = served.as_ref().filter(|_| arguments.cpus.cpus.is_none()).map(Served::cores);
        if let Some(its) = its.filter(|its| !its.is_empty()) {
            if arguments.dedicate {
                return Err(bad_input(
                    "--dedicate keeps everybody else off, and the policy server's cores are for all of its programs: \
                     name others with --cpus",
                ));
            }
            let allowed = affinity::allowed()?;
            let most = allowed.len().saturating_sub(1);
            let its: Vec<CpuId> =
                its.into_iter().take_while(|cpu| allowed.contains(cpu)).take(most).collect();
            if its.is_empty() {
                return Err(bad_input(
                    "this program may not run on the cores that the policy server dedicates; --cpus names others",
                ));
            }
            // They may be all CPUs but one, and one is enough to measure what a move takes.
            (cpus, tried) = (its, 1);
        }
        if let Some(served) = served.as_mut().filter(|_| arguments.cpus.cpus.is_none()) {
            served.heed_only(&cpus);
        }
        let stays =
            |why: &dyn std::fmt::Display| eprintln!("{}: no call moves: {why}.", how.name());
        let trips = match hooked::round_trips(root, &cpus[..tried]) {
            Ok(trips) => trips,
            Err(why @ (HookedError::Ledger(_) | HookedError::Directory(_))) => {
                stays(&why);
                return Ok(None);
            }
            Err(why) => return Err(bad_input(why)),
        };
        let round_trip = trips.moved.estimate().context("no call could be moved")?;
        let hand_over = trips.lent.estimate().context("no call could be moved")?;
        let observer = match Observer::new() {
            Ok(observer) => observer,
            Err(why) => {
                stays(&why);
                return Ok(None);
            }
        };
        command.envs(observer.environment(&[], Some(plans.directory.path())));
        command.env(dimmer_hook::MOVE, "none");
        command.env(dimmer_runtime::CORES, format_cpu_list(&cpus));
        command.env_remove(dimmer_runtime::ENTRANCE);
        super::preload(command)?;
        let moved = |((planned, cost), has_zmm): ((&Planned, Option<CallCost>), bool)| Moved {
            planned: planned.clone(),
            cost,
            has_zmm,
            decision: Decision::default(),
            is_moved: false,
            server: (0, 0),
            told: Tally::default(),
            lasted_ns: None,
        };
        let functions = plans.functions.iter().zip(costs).zip(have_zmm);
        let functions: Vec<Moved> = functions.map(moved).collect();
        let lent = functions.iter().filter(|moved| moved.planned.is_delegated()).count();
        let kinds = [
            (How::DELEGATE.name(), lent, how.delegates, hand_over),
            (How::MIGRATE.name(), functions.len() - lent, how.migrates, round_trip),
        ];
        let is_told = |is_asked: bool| is_asked && !is_narrow;
        for (name, number, _, takes) in kinds.into_iter().filter(|kind| is_told(kind.2)) {
            eprintln!(
                "{name}: calls of {} may move to cpu {}; there and back takes {}.",
                counted(number, "function"),
                format_cpu_list(&cpus),
                time(takes.median),
            );
        }
        if asks {
            eprintln!(
                "{}",
                if served.is_some() {
                    "The policy server decides which of them do."
                } else {
                    "There is no policy server (dimmerd): calls move where a processor model says that it pays, and else stay."
                }
            );
            let its = served.as_ref().map(Served::cores).filter(|its| !its.is_empty());
            if let Some(its) = its.filter(|its| its.iter().all(|cpu| !cpus.contains(cpu))) {
                eprintln!(
                    "It dedicates cpu {}, and --cpus has calls of this program go elsewhere.",
                    format_cpu_list(&its)
                );
            }
        }
        if let Some(text) = forms.as_ref().and_then(Forms::text) {
            eprintln!("{text}");
        }
        let exclusion = Exclusion::new(root, &cpus, observer.directory());
        Ok(Some(Self {
            observer,
            how,
            forms,
            exclusion,
            functions,
            others,
            round_trip,
            hand_over,
            decided: Instant::now(),
            served,
            _plans: plans,
        }))
    }

    /// The CPUs that calls move to; `None` if no call moves because the program has narrower code.
    pub(super) fn cpus(&self) -> Option<&[CpuId]> {
        (!self.is_narrow()).then_some(self.exclusion.cpus())
    }

    /// Whether the program is to have narrower code.
    pub(super) fn is_narrow(&self) -> bool {
        self.forms.as_ref().is_some_and(|forms| forms.form == Form::Narrow)
    }

    /// Reads the counts of the hooks, and decides every [`STEP`].
    pub(super) fn look(&mut self) {
        self.observer.look();
        if self.decided.elapsed() >= STEP {
            self.decided = Instant::now();
            self.decide();
        }
    }

    fn decide(&mut self) {
        let tallies = self.observer.so_far();
        let is_narrow = self.is_narrow();
        if let Some(why) = self.served.as_mut().and_then(Served::tend) {
            eprintln!("{}: {why}.", self.how.name());
        }
        let mut changes = Vec::new();
        for (index, moved) in self.functions.iter_mut().enumerate() {
            let places = moved.planned.places();
            let mut all = Tally::default();
            let known = places.iter().filter_map(|place| tallies.get(place));
            known.for_each(|tally| all.merge(tally));
            let new = |of: fn(&Tally) -> &Times| of(&all).since(of(&moved.told));
            let (lasted, gaps) = (new(|tally| &tally.lasted), new(|tally| &tally.gap_after));
            let lasted_ns = lasted.quantile(0.5);
            let lost = moved.cost.map(|cost| cost.in_gaps(gaps.iter()).total_ns());
            let calls = Calls {
                timed: lasted.measured(),
                lasted_ns,
                moved: new(|tally| &tally.moved).measured(),
                moved_ns: all.moved.quantile(0.5),
                costs_ns: lost.map(|lost| lost / gaps.calls().max(1.0)),
            };
            if let Some(served) = &self.served {
                served.tell(index, &all);
            }
            let takes = if moved.planned.is_delegated() { self.hand_over } else { self.round_trip };
            if moved.decision.step(&calls, takes.median) {
                // How long moved calls would have taken in place is not measured.
                (moved.told, moved.lasted_ns) = (all, lasted_ns.or(moved.lasted_ns));
            }
            let absent = if self.how.is_served { Word::Missing } else { Word::Unasked };
            let word = self.served.as_ref().map_or(absent, |served| served.word(index));
            moved.server.0 += u64::from(word == Word::Move);
            moved.server.1 += 1;
            // By the model, narrower code costs the code after it nothing.
            let now = moved.decision.moves(word) && !is_narrow;
            if now != moved.is_moved {
                moved.is_moved = now;
                changes.extend(places.into_iter().map(|place| (place, now)));
            }
        }
        let dedicated = self.served.as_ref().map(Served::dedicated).filter(|_| !is_narrow);
        let is_wanted = self.functions.iter().any(|moved| moved.is_moved);
        for (process, ledger) in self.observer.processes() {
            self.exclusion.know(process, ledger);
        }
        // The program must leave the cores before calls move there.
        self.observer.use_cores(self.exclusion.step(dedicated, is_wanted));
        for (place, is_moved) in changes {
            self.observer.decide(place, is_moved);
        }
        if let Some(served) = &mut self.served {
            served.publish();
        }
    }

    /// The summary of a program that ended with this status.
    pub(super) fn finish(mut self, status: ExitStatus, spent: Spent) -> anyhow::Result<Account> {
        // Processes that outlive the program run their calls in place.
        for place in self.functions.iter().flat_map(|moved| moved.planned.places()) {
            self.observer.decide(place, false);
        }
        self.exclusion.end();
        let is_narrow = self.is_narrow();
        let observed = self.observer.finish();
        let calls = observed.functions();
        let is_served = self.served.is_some();
        let on_cpu_ns = spent.on_cpu.as_secs_f64() * 1e9;
        let seen = |moved: &Moved| {
            let mut seen = Tally::default();
            let places = moved.planned.places();
            places.iter().filter_map(|place| calls.get(place)).for_each(|tally| seen.merge(tally));
            seen
        };
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
                server_moves_ratio: is_served.then(|| wanted as f64 / steps.max(1) as f64),
                kept: if is_narrow {
                    Some(Kept::Narrow)
                } else {
                    let nobody_decides = self.how.is_served && !is_served && moved.cost.is_none();
                    nobody_decides.then_some(Kept::NobodyDecides)
                },
            }
        };
        let costs = all().filter(|_| !is_narrow);
        let costs = costs.filter_map(|(moved, seen)| Some((moved.cost?, moved.has_zmm, seen)));
        let forecast = forms::forecast(costs, spent.on_cpu);
        let name = |planned: &Planned| format!("{} in {}", planned.title, planned.file.display());
        let shown = || Shown {
            calls: all()
                .filter(|(_, seen)| seen.calls > 0)
                .map(|(moved, seen)| (name(&moved.planned), seen.calls))
                .collect(),
            forecast,
            ..Shown::default()
        };
        let mut account = Account::new(self.how.name(), all().map(function).collect());
        account.is_narrow = is_narrow;
        account.narrow_gain_ratio = forecast;
        account.next = self.forms.and_then(|forms| forms.keep(status, spent, shown()));
        // The program may have written any number there.
        let sum = |sum: u64, number: u64| sum.saturating_add(number);
        account.calls = calls.values().map(|tally| tally.calls).fold(0, sum);
        account.moved = observed.threads.iter().map(|thread| thread.moved).fold(0, sum);
        let taken_ns = all().map(|(_, seen)| moving_ns(seen)).sum::<Option<f64>>();
        // Not all moved calls may have been timed.
        let timed: f64 = tallies.iter().map(|seen| seen.moved.calls()).sum();
        let all_ns =
            taken_ns.map(|ns| if timed > 0.0 { ns / timed * account.moved as f64 } else { 0.0 });
        account.moving_ratio = all_ns.filter(|_| on_cpu_ns > 0.0).map(|ns| ns / on_cpu_ns);
        account.is_served = is_served;
        account.others = self.others;
        let problems = observed.files.iter().filter(|(_, problem)| !problem.is_empty());
        account.problems =
            problems.map(|(file, problem)| format!("{}: {problem}", file.display())).collect();
        account.problems.extend(observed.unreadable.iter().cloned());
        Ok(account)
    }
}

/// CPU time that moving has cost the moved and timed calls of a function (ns). During a moved call
/// its thread spins and a worker works, instead of the thread alone. Uses medians, since a thread
/// that waits for a CPU uses no CPU time. `None` if no call was timed in place.
fn moving_ns(seen: &Tally) -> Option<f64> {
    let Some(moved_ns) = seen.moved.quantile(0.5) else { return Some(0.0) };
    Some((2.0 * moved_ns - seen.lasted.quantile(0.5)?).max(0.0) * seen.moved.calls())
}

impl Planned {
    /// The places of the function's entries.
    fn places(&self) -> Vec<FunctionPlace> {
        let place = |entry: &PlannedEntry| FunctionPlace {
            file: self.file.clone(),
            address: entry.address,
        };
        self.entries.iter().map(place).collect()
    }

    /// Whether the calls through all entries are delegated rather than migrated with their thread.
    fn is_delegated(&self) -> bool {
        self.entries.iter().all(|entry| entry.leaf.is_some())
    }
}

/// The dedicated CPUs: the requested ones, or those of one whole core if the program keeps another
/// core. Never CPUs that are reserved for something else.
pub(crate) fn cores(root: &Root, asked: Option<&str>) -> anyhow::Result<Vec<CpuId>> {
    let held = cpusets::held_by_others(root);
    let Some(asked) = asked else {
        let topology = topology::read(root).context("cannot tell which core to dedicate")?;
        let allowed = affinity::allowed()?;
        let is_held = |cpu: &CpuId| held.iter().any(|held| held.cpus.contains(cpu));
        let free: Vec<CpuId> = allowed.iter().copied().filter(|cpu| !is_held(cpu)).collect();
        return dedicated::pick(&topology, &free, &allowed, 1).map_err(|why| {
            bad_input(format!(
                "no core to move calls to: {why}; --cpus names CPUs whatever core they are of"
            ))
        });
    };
    let cpus = parse_cpu_list(asked)
        .filter(|cpus| !cpus.is_empty())
        .ok_or_else(|| bad_input(format!("--cpus: `{asked}` is no list of CPUs as in `2-3,8`")))?;
    let isolated = topology::isolated(root);
    for cpu in &cpus {
        let whose = if let Some(held) = held.iter().find(|held| held.cpus.contains(cpu)) {
            format!("is for the control group {} alone", held.group)
        } else if isolated.contains(cpu) {
            "is isolated (isolcpus= on the kernel's command line)".to_owned()
        } else {
            affinity::check(root, *cpu).map_err(bad_input)?;
            continue;
        };
        return Err(bad_input(format!(
            "cpu {cpu} {whose}: whoever did that wants it for something else"
        )));
    }
    Ok(cpus)
}
