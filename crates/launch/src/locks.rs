//! The locks of a program, by the places in its code that take them: read from the ledgers of its
//! processes once it has ended.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use dimmer_contention::ledger::BYTES;
use dimmer_contention::reader::{self, CountersFound, Found, SiteFound, Sums};
use dimmer_host::bounded_file;
use dimmer_host::root::Root;
use dimmer_policy::boost::site::AtSite;
use dimmer_policy::break_even::Verdict;
use dimmer_processor::units::{Nanos, Picos};
use dimmer_protocol::ticks_per_ns;
use dimmer_scan::Code;

pub use dimmer_contention::ledger::Kind;

pub use crate::advice::{Advice, BreakEven};
pub use crate::requester::Carried;

use crate::measured::{Counters, Measured};
use crate::monitor::Monitored;
use crate::names::{self, NamesError};
use crate::sections::Section;

/// Maximum number of sites, of all processes together. What happens at others counts as lost.
const MOST_SITES: usize = 1 << 16;

/// Maximum number of processes whose ledgers are read.
const MOST_PROCESSES: usize = 4096;

/// The summary of a run whose locks were observed.
#[derive(Clone, Debug, Default)]
pub struct Locks {
    /// The number of processes that took one of the locks.
    pub processes: usize,
    /// The sites: those with most time waited first, then those with most acquisitions.
    pub sites: Vec<LockSite>,
    /// Acquisitions at sites that had no room.
    pub unplaced: u64,
    /// Holds whose end was not seen.
    pub unended: u64,
    /// The processes that were observed only until they gave up time stamps or system calls.
    pub stopped: usize,
    /// By what the verdicts come about; `None` if the user has named no processor model, and this
    /// machine has no break-even that is known.
    pub advice: Option<Advice>,
    /// What became of the clocks that its threads requested; `None` if they requested none.
    pub carried: Option<Carried>,
    /// The counters that measured some of its sections; `None` if that was not wanted.
    pub counters: Option<Counters>,
    /// What the CPUs and the program did meanwhile; `None` if it was not started.
    pub monitored: Option<Box<Monitored>>,
    /// Problems, each with its file.
    pub problems: Vec<String>,
}

/// A place in the code that takes locks, or waits.
#[derive(Clone, Debug, PartialEq)]
pub struct LockSite {
    /// What it waits for.
    pub kind: Kind,
    /// The symbol of the function; `None` if it is not known.
    pub function: Option<String>,
    /// The file; `None` if the code comes from no file, or its name is too long.
    pub file: Option<PathBuf>,
    /// Offset in that file of where the call returns to; without a file, the address of that.
    pub offset: u64,
    /// How often the lock was taken, or the wait ended.
    pub acquisitions: u64,
    /// How many of them had to wait.
    pub contended: u64,
    /// How long these waited in all.
    pub waited: Nanos,
    /// How many holds that began here have ended.
    pub holds: u64,
    /// How long these lasted in all.
    pub held: Nanos,
    /// The longest of them.
    pub longest: Nanos,
    /// How many of these ended while another thread waited for the lock, or may have. Only seen of
    /// mutexes, and only of holds whose own acquisition did not wait.
    pub wanted: u64,
    /// What threads requested here at the end.
    pub strategy: AtSite,
    /// Requests of a slow clock for waits, of a fast one for holds, and ends of these requests.
    pub requests: [u64; 3],
    /// How many holds ended with the fast clock requested.
    pub boosted: u64,
    /// For how many of these the request was carried out before their end.
    pub carried: u64,
    /// How long these lasted in all from then on.
    pub fast: Nanos,
    /// How long threads were outside of a section from function to function, from its end to the
    /// next wait for it.
    pub outside: Nanos,
    /// What counters say of its sections; `None` if none was measured.
    pub measured: Option<Measured>,
    /// Whether a faster clock pays for its mean hold after its mean wait, for each boost of
    /// [`Advice::boosts`]: with its measured stalls, or else as if memory stalled none of it. Empty
    /// without advice, or if no hold has ended.
    pub verdicts: Vec<Verdict>,
}

impl LockSite {
    /// How long a hold that began here lasted in the mean (ns); `None` if none has ended.
    #[must_use]
    pub fn mean_held_ns(&self) -> Option<f64> {
        mean(self.held, self.holds)
    }

    /// The part of its sections' cycles that were stalled, if it was measured.
    #[must_use]
    pub fn stalled_ratio(&self) -> Option<f64> {
        self.measured.as_ref()?.means?.stalled_ratio
    }

    fn mean_waited_ns(&self) -> Option<f64> {
        mean(self.waited, self.contended)
    }
}

fn mean(sum: Nanos, number: u64) -> Option<f64> {
    (number > 0).then(|| sum.ns() as f64 / number as f64)
}

/// What one place is, in whichever process.
type Place = (Option<PathBuf>, u64, Kind);

/// What happened there, and the strategy of the last process.
type Merged = BTreeMap<Place, (Sums, AtSite)>;

/// Reads the ledgers in `directory`, and names the sites by the files of this machine.
/// Sections by functions have the names that the user has given them.
pub(crate) fn read(
    root: &Root,
    directory: &Path,
    advice: Option<Advice>,
    sections: &[Section],
    is_counted: bool,
) -> Locks {
    let mut locks = Locks { advice, ..Locks::default() };
    let mut merged = Merged::new();
    let mut counters = CountersFound::default();
    let files = match files(directory) {
        Ok(files) => files,
        Err(error) => {
            locks.problems.push(format!("{}: {error}", directory.display()));
            return locks;
        }
    };
    if let Some(more) = files.len().checked_sub(MOST_PROCESSES).filter(|more| *more > 0) {
        locks.problems.push(format!("{more} more processes: only {MOST_PROCESSES} are read"));
    }
    for file in files.iter().take(MOST_PROCESSES) {
        match found(file) {
            Ok(found) => {
                counters.add(found.counters);
                locks.merge(&mut merged, found);
            }
            Err(why) => locks.problems.push(format!("{}: {why}", file.display())),
        }
    }
    if is_counted {
        locks.counters = Some(Counters::new(root, &counters));
    }
    locks.take(root, merged, sections, &counters);
    locks
}

/// The ledgers in a directory, by name.
pub(crate) fn files(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory)?.flatten();
    let paths = entries.map(|entry| entry.path());
    let mut files: Vec<PathBuf> = paths.filter(|path| reader::is_ledger(path)).collect();
    files.sort();
    Ok(files)
}

pub(crate) fn found(file: &Path) -> Result<Found, String> {
    let bytes = bounded_file::read(file, BYTES as u64).map_err(|error| error.to_string())?;
    reader::read(&bytes).map_err(|error| error.to_string())
}

impl Locks {
    /// Adds what a process has.
    fn merge(&mut self, merged: &mut Merged, found: Found) {
        self.processes += 1;
        self.unplaced = self.unplaced.saturating_add(found.unplaced);
        self.unended = self.unended.saturating_add(found.unended);
        self.stopped += usize::from(found.has_stopped);
        // Elsewhere all calls have failed, as those of `pthread_mutex_trylock` may.
        let is_used = |SiteFound { sums, .. }: &SiteFound| {
            sums.acquisitions > 0 || sums.holds > 0 || sums.requests != [0; 3]
        };
        for SiteFound { kind, file, offset, sums, strategy, .. } in
            found.sites.into_iter().filter(is_used)
        {
            let place = (file, offset, kind);
            if merged.len() < MOST_SITES || merged.contains_key(&place) {
                let (sum, last) = merged.entry(place).or_default();
                sum.add(sums);
                *last = strategy;
            } else {
                self.unplaced = self.unplaced.saturating_add(sums.acquisitions);
            }
        }
    }

    /// Takes the sites, named, in the order in which they are shown.
    fn take(
        &mut self,
        root: &Root,
        merged: Merged,
        sections: &[Section],
        counters: &CountersFound,
    ) {
        let per_ns = ticks_per_ns();
        let ns = |ticks: u64| Nanos::rounded(ticks as f64 / per_ns);
        let mut functions = None;
        for ((mut file, mut offset, kind), (sums, strategy)) in merged {
            let section = usize::try_from(offset).ok().and_then(|number| sections.get(number));
            let section = section.filter(|section| section.kind() == kind);
            // Sites are in the order of their files: each is read once.
            if functions.as_ref().is_none_or(|(of, _)| *of != file) {
                let named = file.as_deref().map(|file| Functions::read(root, file));
                let named = named.unwrap_or_else(|| Ok(Functions::default()));
                functions = Some((
                    file.clone(),
                    named.unwrap_or_else(|why| {
                        let file = file.as_deref().unwrap_or(Path::new(""));
                        self.problems.push(format!("{}: {why}", file.display()));
                        Functions::default()
                    }),
                ));
            }
            let mut function = functions.as_ref().and_then(|(_, named)| named.at(offset));
            if let Some(section) = section {
                function = Some(&section.name);
                (file, offset) = (Some(section.file.clone()), section.offset);
            }
            let mut site = LockSite {
                kind,
                function: function.map(str::to_owned),
                file,
                offset,
                acquisitions: sums.acquisitions,
                contended: sums.contended,
                waited: ns(sums.waited),
                holds: sums.holds,
                held: ns(sums.held),
                longest: ns(sums.longest),
                wanted: sums.wanted,
                strategy,
                requests: sums.requests,
                boosted: sums.boosted,
                carried: sums.carried,
                fast: ns(sums.fast),
                outside: ns(sums.outside),
                measured: Measured::new(&sums, counters, per_ns),
                verdicts: Vec::new(),
            };
            site.verdicts = self.verdicts(&site);
            self.sites.push(site);
        }
        self.sites.sort_by_key(|site| std::cmp::Reverse((site.waited, site.acquisitions)));
    }
}

impl Locks {
    /// Whether each boost pays at a site.
    fn verdicts(&self, site: &LockSite) -> Vec<Verdict> {
        let picos = |ns: f64| Picos::rounded(ns * 1000.0);
        let Some(advice) = &self.advice else { return Vec::new() };
        let Some(held) = site.mean_held_ns().map(picos) else { return Vec::new() };
        let waited = site.mean_waited_ns().map_or(Picos::ZERO, picos);
        advice.verdicts(held, waited, site.stalled_ratio().unwrap_or(0.0))
    }
}

/// The functions of a file that have a name, by their offsets in it.
#[derive(Debug, Default)]
struct Functions(Vec<(std::ops::Range<u64>, String)>);

impl Functions {
    fn read(root: &Root, file: &Path) -> Result<Self, NamesError> {
        let bytes = dimmer_host::program::read(file)?;
        let named = names::named(root, file, &bytes)?;
        let code = Code::read(&bytes)?;
        let function = |function: dimmer_scan::Function| {
            let start = code.file_offset(function.addresses.start)?;
            let length = function.addresses.end - function.addresses.start;
            Some((start..start.saturating_add(length), function.name?))
        };
        let mut functions: Vec<_> = named.scan.functions.into_iter().filter_map(function).collect();
        functions.sort_by_key(|(offsets, _)| offsets.start);
        Ok(Self(functions))
    }

    /// The function with the call that returns to this offset. A call may be the last instruction
    /// of its function.
    fn at(&self, offset: u64) -> Option<&str> {
        let within = offset.checked_sub(1)?;
        let after = self.0.partition_point(|(offsets, _)| offsets.start <= within);
        let (offsets, name) = self.0.get(after.checked_sub(1)?)?;
        offsets.contains(&within).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_ledgers_are_named_with_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            std::fs::write(directory.path().join(name), bytes).unwrap();
        };
        write("1-0.locks.ledger", b"short");
        write("2-0.locks.ledger", &vec![7; BYTES]);
        write("3-0.locks.ledger", &vec![7; BYTES + 1]);
        std::fs::create_dir(directory.path().join("4-0.locks.ledger")).unwrap();
        write("other", b"");
        let locks = read(&Root::live(), directory.path(), None, &[], false);
        assert!(locks.processes == 0 && locks.sites.is_empty());
        let expected = ["has 5 bytes", "does not begin", "3-0.locks.ledger", "4-0.locks.ledger"];
        assert_eq!(locks.problems.len(), expected.len(), "{:?}", locks.problems);
        for (problem, expected) in locks.problems.iter().zip(expected) {
            assert!(problem.contains(expected), "{problem}");
        }
        let missing = read(&Root::live(), &directory.path().join("missing"), None, &[], false);
        assert_eq!(missing.problems.len(), 1);
    }

    #[test]
    fn sites_of_several_processes_are_added_up_and_named() {
        let own = std::env::current_exe().unwrap();
        let bytes = dimmer_host::program::read(&own).unwrap();
        let named = names::named(&Root::live(), &own, &bytes).unwrap();
        let code = Code::read(&bytes).unwrap();
        let function = named.scan.functions.iter().find(|function| function.name.is_some());
        let function = function.unwrap();
        // A call at its end returns to the next one.
        let offset = code.file_offset(function.addresses.start).unwrap()
            + (function.addresses.end - function.addresses.start);
        let sums = Sums { acquisitions: 2, contended: 1, longest: 10, ..Sums::default() };
        let strategy = AtSite::Nothing;
        let site =
            SiteFound { kind: Kind::Mutex, file: Some(own), offset, index: 0, strategy, sums };
        let failed = SiteFound { offset: 1, sums: Sums::default(), ..site.clone() };
        let found = Found { sites: vec![site, failed], ..Found::default() };
        let (mut locks, mut merged) = (Locks::default(), Merged::new());
        locks.merge(&mut merged, found.clone());
        locks.merge(&mut merged, found);
        locks.take(&Root::live(), merged, &[], &CountersFound::default());
        assert_eq!((locks.processes, locks.sites.len()), (2, 1));
        let site = &locks.sites[0];
        assert_eq!((site.acquisitions, site.contended), (4, 2));
        assert_eq!(site.function, function.name);
    }

    /// One step on the paper's processor gains from 84 us on.
    #[test]
    fn measured_stalls_count_for_what_a_boost_pays_for() {
        use dimmer_contention::ledger::Measure;
        let model = dimmer_host::models::named("fx-8120").unwrap();
        let advice = Advice::new(&model).unwrap();
        let held = dimmer_processor::units::nearest(100_000.0 * ticks_per_ns());
        let pays = |stalled: u64| {
            let mut sums =
                Sums { acquisitions: 1, holds: 1, held, longest: held, ..Sums::default() };
            for (measure, sum) in [
                (Measure::Sampled, 1),
                (Measure::Time, held),
                (Measure::Counted, 1),
                (Measure::Cycles, 100),
                (Measure::Stalled, stalled),
            ] {
                sums.measures[measure as usize] = sum;
            }
            let counters = CountersFound { counts: [true; 5], ..CountersFound::default() };
            let mut locks = Locks { advice: Some(advice.clone()), ..Locks::default() };
            let merged = Merged::from([((None, 1, Kind::Mutex), (sums, AtSite::Nothing))]);
            locks.take(&Root::live(), merged, &[], &counters);
            let site = &locks.sites[0];
            (site.stalled_ratio(), site.verdicts[1])
        };
        assert_eq!(pays(0), (Some(0.0), Verdict::Pays));
        assert_eq!(pays(50), (Some(0.5), Verdict::ShortSection));
    }
}
