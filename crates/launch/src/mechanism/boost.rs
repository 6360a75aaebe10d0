//! `--boost`: the locks of a program are observed, and where that pays, their holders request a
//! faster clock (paper 002, §4.4 and §5.1).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use dimmer_contention::ledger::{Kind, strategy_at};
use dimmer_contention::reader::{self, SiteFound, Sums};
use dimmer_contention::{board, counters};
use dimmer_host::models;
use dimmer_host::root::Root;
use dimmer_observe::Place;
use dimmer_policy::boost::site::{AtSite, Gain, Use, decide};
use dimmer_processor::units::{CpuId, Picos};
use dimmer_protocol::ticks_per_ns;
use rustix::fs::OFlags;

use super::{Definition, End, Mechanism, Prepared, Setup};
use crate::account::Summary;
use crate::error::chain;
use crate::locks::{self, Advice};
use crate::measured;
use crate::monitor::Monitor;
use crate::note::{Note, Notes};
use crate::requester::{Carried, Requester};
use crate::sections::{self, Section, Sections};
use crate::{LaunchError, preload};

/// Locks are observed, and their holders boosted.
pub(super) const DEFINITION: Definition = Definition {
    name: "boost",
    summary: "shows which locks are held so long that a faster clock for their holders would pay; with auto or a strategy, requests it",
    moves: None,
    prepare,
};

/// What is done at the locks of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Boosting {
    /// They are observed.
    #[default]
    Observe,
    /// A faster clock is requested where sections are longer than the break-even.
    Auto,
    /// All sites have this strategy.
    All(AtSite),
}

impl FromStr for Boosting {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let strategy = AtSite::ALL.into_iter().find(|strategy| strategy.name() == name);
        match (name, strategy) {
            ("observe", _) => Ok(Self::Observe),
            ("auto", _) => Ok(Self::Auto),
            (_, Some(strategy)) => Ok(Self::All(strategy)),
            _ => Err("expected observe, auto, one, ownr or wait".to_owned()),
        }
    }
}

/// How often the sites are looked at to decide about them: each look reads all of a ledger.
const DECISIONS: Duration = Duration::from_millis(200);

/// Processes about whose sites is decided at once: the first that live, for a limit on what that
/// costs.
const MOST_DECIDED: usize = 64;

/// Without a break-even that is known, no section is boosted.
const NO_GAIN: Gain = Gain { shortest: None, speedup: 1.0 };

/// A program whose locks are observed.
#[derive(Debug)]
pub(super) struct Observing {
    root: Root,
    /// Where its processes make their ledgers.
    place: Place,
    advice: Option<Advice>,
    /// `None` if no clocks are requested.
    requester: Option<Requester>,
    decisions: Option<Decisions>,
    sections: Option<Sections>,
    monitor: Monitor,
    is_counted: bool,
    /// Whether clocks are requested, where that is decided.
    is_on: bool,
    /// The strategies that were taken away when it was last decided that none are: by ledger and
    /// site.
    off: Vec<(PathBuf, usize, AtSite)>,
    /// How often locks were taken, by ledger, up to the last look.
    taken: BTreeMap<PathBuf, u64>,
    /// The ledgers that were read after their processes had ended, or executed other programs.
    over: BTreeSet<PathBuf>,
}

/// Decisions about sites, by what has happened there since the last one.
#[derive(Debug)]
struct Decisions {
    next: Instant,
    gain: Gain,
    /// What there was at the sites of living processes at the last decision.
    seen: BTreeMap<PathBuf, BTreeMap<usize, Sums>>,
    /// How many living processes at most had no decision at a look.
    left_out: usize,
}

fn prepare(setup: &mut Setup<'_>) -> Result<Prepared, LaunchError> {
    let model = setup.request.model.as_deref().map(models::named).transpose()?;
    let boosting = setup.request.boosting;
    let requester = match boosting {
        Boosting::Observe => Ok(None),
        Boosting::Auto => Requester::start(setup.root, AtSite::Nothing).map(Some),
        Boosting::All(strategy) => Requester::start(setup.root, strategy).map(Some),
    };
    // If the machine takes no requests, the user gets to know that.
    let requester = requester.unwrap_or_else(|why| {
        (setup.notes)(Note::NoClocks { why });
        None
    });
    let advice = match &model {
        Some(model) => Some(Advice::new(model)?),
        None => requester.as_ref().and_then(|requester| of_machine(setup.root, requester)),
    };
    let decides = boosting == Boosting::Auto && requester.is_some();
    if decides && advice.is_none() {
        (setup.notes)(Note::NoBreakEven);
    }
    let observing = Observing::prepare(setup, requester, advice, decides)?;
    Ok(Some(Box::new(observing)))
}

/// Prepares the program so that its locks can be boosted at some times and not at others. `None` if
/// this machine takes no requests of clocks, or does not report from which length of a section on a
/// faster clock pays; then its locks are not observed either.
pub(super) fn prepare_switched(setup: &mut Setup<'_>) -> Result<Option<Observing>, LaunchError> {
    let Ok(requester) = Requester::start(setup.root, AtSite::Nothing) else { return Ok(None) };
    let advice = of_machine(setup.root, &requester).filter(|advice| advice.gain().is_some());
    if advice.is_none() {
        give_back(requester, setup.notes);
        return Ok(None);
    }
    let mut observing = Observing::prepare(setup, Some(requester), advice, true)?;
    observing.is_on = false;
    Ok(Some(observing))
}

/// What pays on this machine, by how long it takes to request a clock.
fn of_machine(root: &Root, requester: &Requester) -> Option<Advice> {
    Advice::of_machine(root, requester.trial?)
}

/// Ends all requests, and gives back the machine's clocks.
fn give_back(requester: Requester, notes: &mut Notes<'_>) -> Carried {
    let (carried, given_back) = requester.finish();
    match given_back {
        Ok(report) if report.is_complete() && report.left.is_empty() => {}
        Ok(report) => notes(Note::NotUndone(report)),
        Err(error) => notes(Note::CannotUndo { why: chain(&error) }),
    }
    carried
}

impl Observing {
    fn prepare(
        setup: &mut Setup<'_>,
        requester: Option<Requester>,
        advice: Option<Advice>,
        decides: bool,
    ) -> Result<Self, LaunchError> {
        let place = Place::in_memory().map_err(LaunchError::LockPlace)?;
        let sections = sections::prepare(setup.program, setup.command, &setup.request.sections)?;
        // After that of the hooks: it is found first, and calls that one's functions.
        preload::preload_boost(setup.command)?;
        if sections.is_none() {
            // Those of a run around this one.
            setup.command.env_remove(dimmer_contention::SECTIONS);
        }
        setup.command.env(dimmer_contention::DIRECTORY, place.path());
        // One of a run around this one.
        setup.command.env_remove(dimmer_contention::REQUESTS);
        let is_counted = setup.request.is_counted;
        if is_counted {
            let how = counters::text(!measured::is_hybrid());
            setup.command.env(dimmer_contention::COUNTERS, how);
        } else {
            setup.command.env_remove(dimmer_contention::COUNTERS);
        }
        if let Some(requester) = &requester {
            setup.command.env(dimmer_contention::REQUESTS, requester.path());
        }
        let decisions = decides.then(|| Decisions {
            next: Instant::now(),
            gain: advice.as_ref().and_then(Advice::gain).unwrap_or(NO_GAIN),
            seen: BTreeMap::new(),
            left_out: 0,
        });
        let root = setup.root.clone();
        // Last: what follows is the program's start.
        let monitor = Monitor::start(&root, is_counted);
        Ok(Self {
            root,
            place,
            advice,
            requester,
            decisions,
            sections,
            monitor,
            is_counted,
            is_on: true,
            off: Vec::new(),
            taken: BTreeMap::new(),
            over: BTreeSet::new(),
        })
    }

    /// From now on, locks are boosted or not.
    pub(super) fn switch(&mut self, is_on: bool) {
        if self.is_on && !is_on {
            for file in living(locks::files(self.place.path()).unwrap_or_default()) {
                let Ok(found) = locks::found(&file) else { continue };
                for site in found.sites.iter().filter(|site| site.strategy != AtSite::Nothing) {
                    set(&file, site.index, AtSite::Nothing);
                    self.off.push((file.clone(), site.index, site.strategy));
                }
            }
        }
        if !self.is_on && is_on {
            // At once: the window that follows is one under boosts.
            for (file, site, strategy) in std::mem::take(&mut self.off) {
                set(&file, site, strategy);
            }
        }
        self.is_on = is_on;
    }

    /// How often locks were taken since the program's start, also in processes that have ended.
    pub(super) fn taken(&mut self) -> u64 {
        let files = locks::files(self.place.path()).unwrap_or_default();
        // Before reading: what ends from now on is read once more.
        let living: BTreeSet<PathBuf> = living(files.clone()).into_iter().collect();
        for file in files {
            if self.over.contains(&file) {
                continue;
            }
            if let Ok(found) = locks::found(&file) {
                let taken = found.sites.iter().map(|site| site.sums.acquisitions);
                self.taken.insert(file.clone(), taken.fold(0, u64::saturating_add));
            }
            if !living.contains(&file) {
                self.over.insert(file);
            }
        }
        self.taken.values().copied().fold(0, u64::saturating_add)
    }
}

impl Mechanism for Observing {
    fn cpus(&self) -> Option<&[CpuId]> {
        None
    }

    fn started(&mut self, process: u32) {
        self.monitor.started(&self.root, process);
    }

    fn look(&mut self, _: &mut Notes<'_>) {
        self.monitor.look();
        if let Some(decisions) = self.decisions.as_mut().filter(|_| self.is_on) {
            decisions.look(self.place.path());
        }
        if let Some(sections) = &mut self.sections {
            sections.observer.look();
        }
    }

    fn finish(self: Box<Self>, _: &End, notes: &mut Notes<'_>) -> Summary {
        let monitored = Some(Box::new(self.monitor.finish()));
        // Early, because the machine should have its clocks back.
        let carried = self.requester.map(|requester| give_back(requester, notes));
        let (sections, unseen) = self.sections.map(Sections::finish).unwrap_or_default();
        let place = self.place.path();
        let mut locks = locks::read(&self.root, place, self.advice, &sections, self.is_counted);
        locks.carried = carried;
        locks.monitored = monitored;
        locks.problems.extend(unseen);
        let has_site = |section: &Section| {
            let is_its = |function: &String| *function == section.name;
            let mut sites = locks.sites.iter().filter(|site| site.kind == section.kind());
            sites.any(|site| site.function.as_ref().is_some_and(is_its))
        };
        let not_called = sections.iter().filter(|section| !has_site(section));
        let not_called: Vec<String> = not_called
            .map(|section| format!("--section {}: no call was seen", section.name))
            .collect();
        locks.problems.extend(not_called);
        let left_out = self.decisions.map_or(0, |decisions| decisions.left_out);
        if left_out > 0 {
            locks.problems.push(format!(
                "{left_out} processes at once had no decisions of auto: the limit is {MOST_DECIDED}"
            ));
        }
        Summary::Locks(locks)
    }
}

impl Decisions {
    fn look(&mut self, directory: &Path) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + DECISIONS;
        let living = living(locks::files(directory).unwrap_or_default());
        self.left_out = self.left_out.max(living.len().saturating_sub(MOST_DECIDED));
        self.seen.retain(|file, _| living.contains(file));
        // What cannot be read is in the report at the end.
        for file in living.iter().take(MOST_DECIDED) {
            let Ok(found) = locks::found(file) else { continue };
            for site in &found.sites {
                if let Some(strategy) = self.decide(file, site)
                    && strategy != site.strategy
                {
                    set(file, site.index, strategy);
                }
            }
        }
    }

    /// What a site's threads request from now on; `None` if that is not decided yet.
    fn decide(&mut self, file: &Path, site: &SiteFound) -> Option<AtSite> {
        let before = self.seen.get(file).and_then(|sites| sites.get(&site.index));
        let before = before.copied().unwrap_or_default();
        let since = |of: fn(&Sums) -> u64| of(&site.sums).saturating_sub(of(&before));
        let holds = since(|sums| sums.holds);
        let mean = |ticks: u64| {
            Picos::rounded(ticks as f64 / holds.max(1) as f64 / ticks_per_ns() * 1000.0)
        };
        // Each wait for a condition counts as contended, whether or not the lock is.
        let is_lock = site.kind != Kind::Condition;
        // That the rest of the program waits for a function is the user's word.
        let is_named = site.kind == Kind::Function;
        let seen = Use {
            acquisitions: since(|sums| sums.acquisitions),
            contended: if is_lock { since(|sums| sums.contended) } else { 0 },
            holds,
            wanted: if is_named { holds } else { since(|sums| sums.wanted) },
            mean: mean(since(|sums| sums.held)),
            fast: mean(since(|sums| sums.fast)),
        };
        let decided = decide(&seen, self.gain)?;
        self.seen.entry(file.to_owned()).or_default().insert(site.index, site.sums);
        Some(decided)
    }
}

/// The ledgers of these that living processes use, the latest of each process, by the number of the
/// process.
fn living(files: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut latest = BTreeMap::new();
    for file in files {
        if let Some((process, attempt)) = reader::number_of(&file) {
            let last = latest.entry(process).or_insert_with(|| (attempt, file.clone()));
            if attempt > last.0 {
                *last = (attempt, file);
            }
        }
    }
    let lives = |process: &u32| board::lives(*process);
    latest.into_iter().filter(|(process, _)| lives(process)).map(|(_, (_, file))| file).collect()
}

/// Writes a site's strategy into its ledger. If that fails, the site keeps the one it has.
fn set(ledger: &Path, site: usize, strategy: AtSite) {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    let opened = options.write(true).custom_flags(flags.bits().cast_signed()).open(ledger);
    let number = (strategy as u32).to_ne_bytes();
    let _ = opened.and_then(|ledger| ledger.write_at(&number, strategy_at(site) as u64));
}

#[cfg(test)]
mod tests {
    use dimmer_processor::units::nearest;

    use super::*;

    #[test]
    fn an_unknown_strategy_is_refused_with_those_that_there_are() {
        for name in ["observe", "auto", "one", "ownr", "wait"] {
            assert!(name.parse::<Boosting>().is_ok(), "{name}");
        }
        let refused = "spin".parse::<Boosting>().unwrap_err();
        assert_eq!(refused, "expected observe, auto, one, ownr or wait");
    }

    #[test]
    fn a_site_is_decided_about_by_what_happened_since_the_last_decision() {
        let mut decisions = Decisions {
            next: Instant::now(),
            gain: Gain { shortest: Some(Picos::rounded(1e6)), speedup: 1.5 },
            seen: BTreeMap::new(),
            left_out: 0,
        };
        let file = Path::new("ledger");
        let us = |us: f64| nearest(us * 1000.0 * ticks_per_ns());
        let mut site = SiteFound {
            kind: Kind::Mutex,
            file: None,
            offset: 0,
            index: 3,
            strategy: AtSite::Nothing,
            sums: Sums {
                acquisitions: 30,
                holds: 30,
                wanted: 30,
                held: us(60.0),
                ..Sums::default()
            },
        };
        assert_eq!(decisions.decide(file, &site), None, "too few");
        site.sums = Sums { holds: 31, held: us(62.0), ..site.sums };
        assert_eq!(decisions.decide(file, &site), Some(AtSite::One));
        assert_eq!(decisions.decide(file, &site), None, "nothing since");
        site.sums = Sums { holds: 131, wanted: 130, held: us(72.0), ..site.sums };
        assert_eq!(decisions.decide(file, &site), Some(AtSite::Nothing), "short ones since");
        // Sections of 1.05 µs, 0.7 with the fast clock: the site stays boosted.
        site.sums = Sums { holds: 231, wanted: 230, held: us(142.0), fast: us(70.0), ..site.sums };
        assert_eq!(decisions.decide(file, &site), Some(AtSite::One));
        // A thread that waits for work is no bottleneck.
        site.sums = Sums { acquisitions: 100, contended: 100, wanted: 0, ..site.sums };
        let waits = SiteFound { kind: Kind::Condition, index: 4, ..site };
        decisions.gain.shortest = Some(Picos::ZERO);
        assert_eq!(decisions.decide(file, &waits), Some(AtSite::Nothing));
        assert_eq!(
            decisions.decide(file, &SiteFound { kind: Kind::Mutex, ..waits.clone() }),
            None,
            "decided about already"
        );
        // A function that the user has named, and the same section of a lock.
        for (index, kind, expected) in
            [(5, Kind::Function, AtSite::One), (6, Kind::Section, AtSite::Nothing)]
        {
            let alone = SiteFound {
                kind,
                index,
                sums: Sums { contended: 0, ..waits.sums },
                ..waits.clone()
            };
            assert_eq!(decisions.decide(file, &alone), Some(expected));
        }
    }

    #[test]
    fn decisions_are_about_the_latest_ledgers_of_living_processes() {
        // No process has the first number: the kernel's numbers end at 2^22.
        let own = std::process::id();
        let names = [
            format!("{}-0.locks.ledger", 1 << 23),
            format!("{own}-10.locks.ledger"),
            format!("{own}-9.locks.ledger"),
            "x.locks.ledger".to_owned(),
        ];
        let latest = PathBuf::from(&names[1]);
        assert_eq!(living(names.iter().map(PathBuf::from).collect()), [latest]);
    }

    #[test]
    fn a_strategy_is_written_to_its_site_alone() {
        let directory = tempfile::tempdir().unwrap();
        let ledger = directory.path().join("1-0.locks.ledger");
        std::fs::write(&ledger, vec![0; dimmer_contention::ledger::BYTES]).unwrap();
        set(&ledger, 1, AtSite::Owner);
        let bytes = std::fs::read(&ledger).unwrap();
        assert_eq!(bytes.len(), dimmer_contention::ledger::BYTES);
        let written: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
        assert_eq!(written, [strategy_at(1)]);
    }
}
