//! Operating points of a core that are requested one after the other, as fast as the machine takes
//! them: what `dimmer probe --mode pstate` measures (paper 002, section 4.1).
//!
//! By the files of cpufreq, or else by the registers of P-states. At first each point is requested
//! once through the journal, which so has all values on record. From then on a request is nothing
//! but the write, into files that are open.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use dimmer_processor::units::{CpuId, KiloHertz};

use crate::cpufreq::{POLICIES, Policy, clocks};
use crate::cpuid::Cpuid;
use crate::journal::{Journal, JournalError};
use crate::msr;
use crate::pstate::{self, Part, Pstates, SetError};
use crate::root::{Root, RootError};
use crate::topology;
use crate::unavailable::Unavailable;

/// The noun in refusals.
const WHAT: &str = "operating points";

/// The governor that sets the clock that it gets from users.
const USERSPACE: &str = "userspace";

/// The operating points of a core. Undoing the journal undoes all requests.
#[derive(Debug)]
pub struct OperatingPoints {
    root: Root,
    clocks: Vec<KiloHertz>,
    by: By,
}

/// What is written.
#[derive(Debug)]
enum By {
    /// The speed of the governor `userspace`.
    Speed(Target),
    /// Both limits of the policy: the lower one, the upper one, and the point in force.
    Limits(Target, Target, usize),
    /// A register, and its value for each point.
    Register { file: Target, register: u32, values: Vec<u64> },
}

/// A file to write again and again.
#[derive(Debug)]
struct Target {
    path: String,
    /// `None` on a made-up machine, whose files keep what is longer.
    file: Option<File>,
}

impl Target {
    fn open(root: &Root, path: String) -> Result<Self, RootError> {
        let file = root.is_live().then(|| root.open_to_write(&path)).transpose()?;
        Ok(Self { path, file })
    }

    fn write(&self, root: &Root, text: &str) -> Result<(), RootError> {
        match &self.file {
            Some(file) => file
                .write_all_at(text.as_bytes(), 0)
                .map_err(|source| root.write_error(&self.path, source)),
            None => root.write(&self.path, text),
        }
    }

    fn write_register(&self, root: &Root, register: u32, value: u64) -> Result<(), RootError> {
        match &self.file {
            Some(file) => file
                .write_all_at(&value.to_le_bytes(), register.into())
                .map_err(|source| root.write_error(&self.path, source)),
            None => msr::write(root, &self.path, register, value),
        }
    }
}

impl OperatingPoints {
    /// The points of the core of `cpu`: at most `most`, evenly spread from the slowest to the
    /// fastest one. Afterwards the core is at one of them, and its SMT siblings request the
    /// slowest, as a core runs at the faster of their requests.
    ///
    /// # Errors
    /// [`SetError::Unavailable`], with the reasons of both ways and what would help;
    /// [`SetError::Journal`]: the machine does not take a request. What was changed until then is
    /// in the journal.
    pub fn open(
        journal: &mut Journal,
        cpuid: &Cpuid,
        cpu: CpuId,
        most: usize,
    ) -> Result<Self, SetError> {
        let root = journal.root().clone();
        let missing = match clocks::check(&root) {
            Ok(found) => {
                let policies: Vec<Policy> = found.into_iter().map(|(policy, _)| policy).collect();
                let (clocks, by) = by_files(journal, &policies, cpu, most)?;
                return Ok(Self { root, clocks, by });
            }
            Err(missing) => missing,
        };
        let by_registers = Pstates::read(&root, cpuid).and_then(|found| {
            pstate::check_requests(&root, &found)?;
            Ok(found)
        });
        match by_registers {
            Ok(found) => {
                let (clocks, by) = by_register(journal, &found.part, cpu, most)?;
                Ok(Self { root, clocks, by })
            }
            Err(other) => {
                let why =
                    format!("{}: {}; {}: {}", missing.what, missing.why, other.what, other.why);
                let remedy = format!("{}; or {}", missing.remedy, other.remedy);
                Err(Unavailable::new(WHAT, why, remedy).into())
            }
        }
    }

    /// The points, the slowest first.
    #[must_use]
    pub fn clocks(&self) -> &[KiloHertz] {
        &self.clocks
    }

    /// What is written: `scaling_setspeed`, `scaling_min_freq and scaling_max_freq`, or
    /// `register 0x199`.
    #[must_use]
    pub fn by(&self) -> String {
        match &self.by {
            By::Speed(_) => "scaling_setspeed".to_owned(),
            By::Limits(..) => "scaling_min_freq and scaling_max_freq".to_owned(),
            By::Register { register, .. } => format!("register {register:#x}"),
        }
    }

    /// Requests the point with this index; beyond the last, the fastest.
    ///
    /// # Errors
    /// [`RootError::Write`].
    ///
    /// # Cost
    /// One write; two where it is the limits of a policy.
    pub fn request(&mut self, point: usize) -> Result<(), RootError> {
        let point = point.min(self.clocks.len().saturating_sub(1));
        let root = &self.root;
        let Some(khz) = self.clocks.get(point).map(|clock| clock.khz().to_string()) else {
            return Ok(());
        };
        match &mut self.by {
            By::Speed(file) => file.write(root, &khz),
            By::Limits(lower, upper, now) => {
                // The lower limit never passes the upper one.
                let order = if point > *now { [&*upper, &*lower] } else { [&*lower, &*upper] };
                order.into_iter().try_for_each(|file| file.write(root, &khz))?;
                *now = point;
                Ok(())
            }
            By::Register { file, register, values } => {
                let value = values.get(point).copied().unwrap_or_default();
                file.write_register(root, *register, value)
            }
        }
    }
}

/// The indices of at most `most` of `count` values, evenly spread, both ends among them.
fn spread(count: usize, most: usize) -> impl Iterator<Item = usize> {
    let taken = count.min(most.max(2));
    let last = count.saturating_sub(1) as u128;
    // The quotient is at most `last`.
    let at = move |at: usize| at as u128 * last / (taken.max(2) - 1) as u128;
    (0..taken).map(move |index| usize::try_from(at(index)).unwrap_or(usize::MAX))
}

/// At most `most` clocks from one to another of a driver that takes any: steps of 100 MHz, as
/// processors have them.
fn steps(lowest: KiloHertz, highest: KiloHertz, most: usize) -> Vec<KiloHertz> {
    let (first, last) = (lowest.khz().div_ceil(STEP_KHZ), highest.khz() / STEP_KHZ);
    let count = (last + 1).saturating_sub(first);
    // More steps than a machine has memory for are a made-up machine's.
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    spread(count, most).map(|at| KiloHertz::from_khz((first + at as u64) * STEP_KHZ)).collect()
}

fn by_files(
    journal: &mut Journal,
    policies: &[Policy],
    cpu: CpuId,
    most: usize,
) -> Result<(Vec<KiloHertz>, By), SetError> {
    let root = journal.root().clone();
    let refuse = |why: String, remedy: &str| Unavailable::new(WHAT, why, remedy);
    let policy = policies.iter().find(|policy| policy.cpus.contains(&cpu)).ok_or_else(|| {
        refuse(format!("CPU {cpu} has no policy under {POLICIES}"), "name another CPU (--cpu)")
    })?;
    let (lowest, highest) = policy.allowed.ok_or_else(|| {
        let why = format!("{} does not report the limits of its settings", policy.name);
        refuse(why, "use another driver for cpufreq")
    })?;
    let mut clocks = clocks::table(&root, policy);
    if !clocks.is_empty() {
        // Some drivers list them apart.
        clocks.extend(clocks::boosted(&root, policy));
        clocks.sort_unstable();
    }
    let clocks = if clocks.is_empty() {
        steps(lowest, highest, most)
    } else {
        clocks.retain(|clock| (lowest..=highest).contains(clock));
        clocks.dedup();
        spread(clocks.len(), most).map(|at| clocks[at]).collect()
    };
    if clocks.len() < 2 {
        let why = format!(
            "{} allows one clock alone, from {} to {} kHz",
            policy.name,
            lowest.khz(),
            highest.khz()
        );
        return Err(refuse(why, "set scaling_min_freq below scaling_max_freq").into());
    }
    let siblings = siblings(&root, cpu);
    let is_sibling = |other: &&Policy| {
        other.name != policy.name && other.cpus.iter().any(|cpu| siblings.contains(cpu))
    };
    for other in policies.iter().filter(is_sibling) {
        set(journal, &format!("{POLICIES}/{}/scaling_max_freq", other.name), lowest)?;
    }
    let path = |name: &str| format!("{POLICIES}/{}/{name}", policy.name);
    let target = |name: &str| Target::open(&root, path(name)).map_err(JournalError::Change);
    let governors = root.text(&path("scaling_available_governors")).unwrap_or_default();
    if policy.governor.as_deref() == Some(USERSPACE)
        || governors.split_whitespace().any(|governor| governor == USERSPACE)
    {
        journal.change(&path("scaling_governor"), USERSPACE)?;
        for clock in &clocks {
            set(journal, &path("scaling_setspeed"), *clock)?;
        }
        return Ok((clocks, By::Speed(target("scaling_setspeed")?)));
    }
    // Downwards, so that the lower limit never passes the upper one.
    for clock in clocks.iter().rev() {
        set(journal, &path("scaling_min_freq"), *clock)?;
        set(journal, &path("scaling_max_freq"), *clock)?;
    }
    let (lower, upper) = (target("scaling_min_freq")?, target("scaling_max_freq")?);
    Ok((clocks, By::Limits(lower, upper, 0)))
}

/// The step between clocks where a driver takes any (kHz).
const STEP_KHZ: u64 = 100_000;

/// Writes a clock; the kernel may round it, also to what it was.
fn set(journal: &mut Journal, path: &str, clock: KiloHertz) -> Result<(), JournalError> {
    match journal.change(path, &clock.khz().to_string()) {
        Err(JournalError::NotTaken { .. }) => Ok(()),
        changed => changed,
    }
}

fn siblings(root: &Root, cpu: CpuId) -> Vec<CpuId> {
    topology::read(root).map(|found| found.siblings(cpu)).unwrap_or_default()
}

fn by_register(
    journal: &mut Journal,
    part: &Part,
    cpu: CpuId,
    most: usize,
) -> Result<(Vec<KiloHertz>, By), SetError> {
    let root = journal.root().clone();
    let (slowest, fastest) = (part.slowest(), part.fastest());
    let numbers = slowest.min(fastest)..=slowest.max(fastest);
    let mut points: Vec<(KiloHertz, u8)> =
        numbers.filter_map(|number| Some((part.clock(number)?, number))).collect();
    points.sort_unstable();
    points.dedup_by_key(|(clock, _)| *clock);
    if points.len() < 2 {
        let why = format!("P{fastest} is the only P-state in use");
        return Err(Unavailable::new(WHAT, why, "enable P-states in the firmware").into());
    }
    let points: Vec<_> = spread(points.len(), most).map(|at| points[at]).collect();
    for sibling in siblings(&root, cpu) {
        taken(pstate::request(journal, part, sibling, slowest))?;
    }
    let (mut values, mut register) = (Vec::new(), 0);
    for (_, number) in &points {
        let value;
        (register, value) = pstate::control(&root, part, cpu, *number)?;
        values.push(value);
        taken(pstate::request(journal, part, cpu, *number))?;
    }
    let file = Target::open(&root, msr::path(&root, cpu)).map_err(JournalError::Change)?;
    let clocks = points.into_iter().map(|(clock, _)| clock).collect();
    Ok((clocks, By::Register { file, register, values }))
}

/// A request may find the value in force already.
fn taken(requested: Result<(), SetError>) -> Result<(), SetError> {
    match requested {
        Err(SetError::Journal(JournalError::NotTaken { .. })) => Ok(()),
        requested => requested,
    }
}
