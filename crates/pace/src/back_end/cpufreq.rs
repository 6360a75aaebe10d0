//! Requests by the files of cpufreq: the speed of the governor `userspace`, or, with any other one,
//! both limits between which the governor or the processor chooses.
//!
//! Source: Linux `Documentation/admin-guide/pm/cpufreq.rst`. The governor stays the administrator's
//! choice. Before every change the files must hold what this back end left there, and the governor
//! must be the same; otherwise another program is at work, and the policy is its own.

use dimmer_host::cpufreq::{self, POLICIES, Policy, clocks};
use dimmer_host::journal::{Journal, JournalError, Report};
use dimmer_host::root::{Root, RootError};
use dimmer_host::unavailable::Unavailable;
use dimmer_processor::units::KiloHertz;

use super::cores::{Cores, Domain, LEFT_ALONE, ReadClock, Setting, Wanted, explain};
use super::own_file::OwnFile;

/// The governor that sets the clock that it gets from users.
const USERSPACE: &str = "userspace";
/// Its file.
const SPEED: &[&str] = &["scaling_setspeed"];
/// The limits, the lower one first.
const LIMITS: &[&str] = &["scaling_min_freq", "scaling_max_freq"];

/// The back end of this machine. First undoes what a process has left that was killed.
///
/// # Errors
/// [`Unavailable`].
pub(crate) fn open(root: &Root) -> Result<Cores<Files>, Unavailable> {
    clocks::check(root)?;
    let (journal, _) = Journal::open(root)
        .map_err(|error| unavailable(explain(&error), "run `dimmer restore` as root"))?;
    let mut domains = Vec::new();
    let mut policies = Vec::new();
    for (policy, clocks) in clocks::check(root)? {
        policies.push(OwnPolicy::new(root, &policy).map_err(|error| {
            let why = explain(&JournalError::Before(error));
            unavailable(why, "use a driver that has this file")
        })?);
        domains.push(Domain { cpus: policy.cpus, clocks });
    }
    Ok(Cores::new(root, domains, Files { root: root.clone(), journal, policies }))
}

const WHAT: &str = "requests of clocks by files (cpufreq)";

fn unavailable(why: String, remedy: &str) -> Unavailable {
    Unavailable::new(WHAT, why, remedy)
}

/// What the file held at first, as a clock (kHz).
fn khz(file: &OwnFile) -> Option<u64> {
    file.before.parse().ok()
}

/// The files of all policies.
#[derive(Debug)]
pub(crate) struct Files {
    root: Root,
    /// Undoes all changes when it is dropped.
    journal: Journal,
    policies: Vec<OwnPolicy>,
}

/// The files of a policy.
#[derive(Debug)]
struct OwnPolicy {
    policy: Policy,
    governor: OwnFile,
    /// Those to write; of two the lower limit first.
    files: Vec<OwnFile>,
    /// The clocks that the driver chooses from, ascending; empty if it can set any.
    table: Vec<KiloHertz>,
}

fn left_alone(why: String) -> Unavailable {
    unavailable(why, LEFT_ALONE)
}

impl OwnPolicy {
    fn new(root: &Root, policy: &Policy) -> Result<Self, RootError> {
        let file =
            |name: &str| OwnFile::new(WHAT, root, format!("{POLICIES}/{}/{name}", policy.name));
        let governor = file("scaling_governor")?;
        let names = if governor.before == USERSPACE { SPEED } else { LIMITS };
        let files = names.iter().map(|name| file(name));
        let files = files.collect::<Result<_, _>>()?;
        let table = clocks::table(root, policy);
        Ok(Self { policy: policy.clone(), governor, files, table })
    }

    /// The slowest clock of the driver's that is as fast. The kernel would round both limits apart,
    /// and each again when the other changes. The table may lack clocks with turbo.
    fn of_driver(&self, clock: KiloHertz) -> KiloHertz {
        self.table.iter().copied().find(|own| *own >= clock).unwrap_or(clock)
    }

    /// What is wanted of a file: at least what it held at first, if the clock is wanted at least.
    fn of_file(&self, file: &OwnFile, wanted: Option<Wanted>) -> Option<KiloHertz> {
        let Wanted { clock, is_least } = wanted?;
        let clock = self.of_driver(clock);
        let before = khz(file).filter(|_| is_least).map(KiloHertz::from_khz);
        Some(before.map_or(clock, |before| clock.max(before)))
    }

    fn set(&mut self, journal: &mut Journal, wanted: Option<Wanted>) -> Result<(), Unavailable> {
        self.governor.check(journal.root())?;
        self.files.iter().try_for_each(|file| file.check(journal.root()))?;
        if wanted.is_some_and(|wanted| wanted.is_least)
            && let Some(file) = self.files.iter().find(|file| khz(file).is_none())
        {
            return Err(left_alone(format!(
                "{} held `{}`, which is no clock",
                file.path, file.before
            )));
        }
        let mut write = |file: &OwnFile| {
            let clock = self.of_file(file, wanted).map(|clock| clock.khz().to_string());
            file.write(journal, clock.as_deref())
        };
        if self.is_raised(wanted) {
            self.files.iter().rev().try_for_each(&mut write)?;
        } else {
            self.files.iter().try_for_each(&mut write)?;
        }
        // Only now, because the kernel may round the one when the other changes.
        self.files.iter_mut().try_for_each(|file| file.note(journal.root()))
    }

    /// Whether the upper limit rises: then it goes first, so that the lower one never passes it.
    fn is_raised(&self, wanted: Option<Wanted>) -> bool {
        let Some(upper) = self.files.last() else { return false };
        let clock = self.of_file(upper, wanted).map(KiloHertz::khz);
        clock.or_else(|| khz(upper)) > upper.left.parse().ok()
    }
}

impl Setting for Files {
    const NAME: &str = "cpufreq";

    fn set(&mut self, domain: usize, wanted: Option<Wanted>) -> Result<(), Unavailable> {
        let Self { journal, policies, .. } = self;
        policies.get_mut(domain).map_or(Ok(()), |policy| policy.set(journal, wanted))
    }

    fn give_back(self) -> Result<Report, JournalError> {
        self.journal.undo()
    }

    fn has(&self, domain: usize, place: &str) -> bool {
        let is_of = |policy: &OwnPolicy| {
            // A speed lasts as long as the governor that takes it; limits are there under any.
            let has_governor = policy.governor.before == USERSPACE && policy.governor.path == place;
            has_governor || policy.files.iter().any(|file| file.path == place)
        };
        self.policies.get(domain).is_some_and(is_of)
    }

    fn clock(&self, domain: usize) -> Option<ReadClock> {
        let (root, policy) = (self.root.clone(), self.policies.get(domain)?.policy.clone());
        Some(Box::new(move || cpufreq::clock(&root, &policy)))
    }
}

#[cfg(test)]
mod tests;
