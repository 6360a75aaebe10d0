//! A whole probe: measures kernels in several modes, in order, with one calibration.

use std::sync::Arc;
use std::time::Duration;

use dimmer_processor::units::CpuId;

use crate::calibration::Calibration;
use crate::kernel::Kernel;
use crate::lab::{Effort, Lab, ModeError, Observer, Settings};
use crate::mode::episode::Ongoing;
use crate::mode::{Mode, downclock, episode, instructions, levels, ramp, recurrence};
use crate::outcome::{Detail, Findings, Outcome, Skipped};
use crate::program::Counts;
use crate::surroundings::Log;
use crate::target::{Target, TargetError};

/// One measurement.
#[derive(Clone, Debug)]
pub struct Item {
    /// The mode.
    pub mode: Mode,
    /// The kernel.
    pub kernel: Kernel,
    /// Instructions in a burst; only `episode` and `recurrence` use it.
    pub burst: u32,
}

/// The measurements of a probe.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The items to measure, in order.
    pub items: Vec<Item>,
    /// The CPU to measure.
    pub cpu: CpuId,
    /// Settings of the measurements.
    pub settings: Settings,
    /// Time for all of it. Items share the remaining time in proportion to what they usually take;
    /// each always takes at least the minimum time that it needs.
    pub budget: Duration,
    /// Whether to leave out modes that ask about an effect (upclock, recurrence, instructions) for
    /// kernels in which no other mode of this plan has seen one. A quick probe then examines the
    /// recurrence of only one kernel.
    pub only_where_effect: bool,
}

impl Plan {
    /// Every mode on every kernel, mode by mode, with every burst in the modes that have bursts.
    #[must_use]
    pub fn cross(modes: &[Mode], kernels: &[Kernel], bursts: &[u32]) -> Vec<Item> {
        let mut items = Vec::new();
        for &mode in modes {
            let bursts = if mode.has_bursts() { bursts } else { &bursts[..bursts.len().min(1)] };
            for kernel in kernels {
                let of = |&burst| Item { mode, kernel: kernel.clone(), burst };
                items.extend(bursts.iter().map(of));
            }
        }
        items
    }
}

/// Calibrates the instrument and measures everything in the plan.
///
/// If the observer stops the probe, that is not an error: the complete results are returned.
///
/// # Errors
/// [`TargetError`]: there is nothing to measure with.
pub fn run(
    target: &mut dyn Target,
    plan: &Plan,
    observer: &mut dyn Observer,
) -> Result<Findings, TargetError> {
    let begin = target.now();
    observer.begins("calibrating", 0.0);
    let calibration = Calibration::take(target, plan.cpu)?;
    let findings = Findings {
        tsc_ghz: calibration.tsc.ghz(),
        instrument: calibration.instrument,
        surroundings: None,
        outcomes: Vec::new(),
        skipped: Vec::new(),
        interrupted: false,
    };
    let log = Log::default();
    let mut session = Session { target, plan, observer, calibration, begin, log, findings };
    match session.measure_all() {
        Ok(()) => {}
        Err(ModeError::Interrupted | ModeError::Disturbed { .. }) => {
            session.findings.interrupted = true;
        }
        Err(ModeError::Target(error)) => return Err(error),
    }
    Ok(Findings { surroundings: session.log.told(), ..session.findings })
}

/// A probe in progress.
struct Session<'a> {
    target: &'a mut dyn Target,
    plan: &'a Plan,
    observer: &'a mut dyn Observer,
    calibration: Calibration,
    begin: Duration,
    log: Log,
    findings: Findings,
}

impl Session<'_> {
    fn measure_all(&mut self) -> Result<(), ModeError> {
        let plan = self.plan;
        let mut rest = plan.items.as_slice();
        while let [first, ..] = rest {
            let takes_turns = |item: &&Item| item.mode == Mode::Episode;
            let turns = rest.iter().take(IN_TURN).take_while(takes_turns).count();
            let (items, later) = rest.split_at(turns.max(1));
            let allowance = self.allowance(rest);
            let behind = (plan.items.len() - rest.len()) as f64;
            if turns > 1 {
                self.measure_in_turn(items, allowance, behind)?;
            } else if self.is_to_measure(first) {
                self.says(&format!("{} {}", first.mode, first.kernel), behind);
                self.measure(first, allowance)?;
            }
            rest = later;
        }
        Ok(())
    }

    /// Time for the first of these items; the others need their share.
    fn allowance(&self, rest: &[Item]) -> Duration {
        let left = self.plan.budget.saturating_sub(self.target.now().saturating_sub(self.begin));
        let alone = rest.first().is_some_and(|first| self.is_for_one_kernel(first.mode));
        let sharing = rest.iter().take(if alone { 1 } else { rest.len() });
        let weights = sharing.map(|item| weight(item.mode)).sum::<f64>();
        rest.first().map_or(left, |first| left.mul_f64(weight(first.mode) / weights))
    }

    /// Whether one kernel gets all the time for a mode: a quick probe of everything has too little
    /// time to measure recurrence for several.
    fn is_for_one_kernel(&self, mode: Mode) -> bool {
        let is_quick = self.plan.settings.effort == Effort::Quick;
        is_quick && self.plan.only_where_effect && mode == Mode::Recurrence
    }

    /// Whether the item can and shall be measured; if not, stores the reason.
    fn is_to_measure(&mut self, Item { mode, kernel, .. }: &Item) -> bool {
        let name = &kernel.name;
        if let Some(reason) = self.target.lacks(kernel) {
            self.skip(None, name, reason);
            return false;
        }
        let asks_about_effect =
            matches!(mode, Mode::Upclock | Mode::Recurrence | Mode::Instructions);
        if self.plan.only_where_effect && asks_about_effect && !saw_effect(&self.findings, name) {
            let reason = "no effect of this kernel was seen by the other modes".to_owned();
            self.skip(Some(*mode), name, reason);
            return false;
        }
        let is_measured = self.findings.outcomes.iter().any(|outcome| outcome.mode == *mode);
        if self.is_for_one_kernel(*mode) && is_measured {
            let reason = "a quick probe has the time for one kernel".to_owned();
            self.skip(Some(*mode), name, reason);
            return false;
        }
        true
    }

    /// Stores that a kernel or mode cannot be measured here, or is not to be.
    fn skip(&mut self, mode: Option<Mode>, kernel: &str, reason: String) {
        self.leave_out(Skipped { mode, kernel: kernel.to_owned(), reason, is_disturbed: false });
    }

    fn leave_out(&mut self, skipped: Skipped) {
        if !self.findings.skipped.contains(&skipped) {
            self.findings.skipped.push(skipped);
        }
    }

    /// Stores the outcomes of a measurement, or that it was disturbed.
    fn store(
        &mut self,
        mode: Mode,
        kernel: &str,
        measured: Result<Vec<Outcome>, ModeError>,
    ) -> Result<(), ModeError> {
        match measured {
            Ok(outcomes) => self.findings.outcomes.extend(outcomes),
            Err(error @ ModeError::Disturbed { .. }) => self.leave_out(Skipped {
                mode: Some(mode),
                kernel: kernel.to_owned(),
                reason: error.to_string(),
                is_disturbed: true,
            }),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Reports the next piece of work; `behind` is the number of complete items, parts included.
    fn says(&mut self, what: &str, behind: f64) {
        self.observer.begins(what, (behind / self.plan.items.len() as f64).min(1.0));
    }

    fn lab(&mut self, kernel: &Arc<Kernel>, allowance: Duration) -> Lab<'_> {
        Lab {
            target: &mut *self.target,
            calibration: &self.calibration,
            settings: &self.plan.settings,
            observer: &*self.observer,
            cpu: self.plan.cpu,
            kernel: Arc::clone(kernel),
            allowance,
            surroundings: &mut self.log,
            counts: None,
        }
    }

    fn measure(&mut self, item: &Item, allowance: Duration) -> Result<(), ModeError> {
        let Item { mode, kernel, burst } = item;
        let settle_ns = settle_ns(&self.findings, &kernel.name);
        let mut lab = self.lab(&Arc::new(kernel.clone()), allowance);
        let measured = measure(&mut lab, *mode, *burst, settle_ns);
        self.store(*mode, &kernel.name, measured)
    }

    /// Measures episodes in turn, program by program.
    fn measure_in_turn(
        &mut self,
        items: &[Item],
        allowance: Duration,
        behind: f64,
    ) -> Result<(), ModeError> {
        // Approximate shares of the parts: the first look, the repetitions, the rest.
        const PARTS: (f64, f64, f64) = (0.1, 0.6, 0.3);
        let mut turns = Vec::new();
        for item in items {
            if !self.is_to_measure(item) {
                continue;
            }
            let done = behind + turns.len() as f64 * PARTS.0;
            self.says(&format!("{} {}: a first look", item.mode, item.kernel), done);
            let kernel = Arc::new(item.kernel.clone());
            let mut lab = self.lab(&kernel, allowance);
            let ongoing = Ongoing::begin(&mut lab, item.mode, item.burst)?;
            let counts = lab.counts;
            turns.push(Turn { kernel, ongoing, counts, done: false });
        }
        let n = turns.len() as f64;
        let what = format!("{}: {} kernels in turn", Mode::Episode, turns.len());
        let begin = self.target.now();
        let longest = episode::LONGEST * u32::try_from(turns.len()).unwrap_or(u32::MAX);
        let time = allowance.mul_f64(episode::SHARE_OF_TIME * n).min(longest);
        while turns.iter().any(|turn| !turn.done) {
            let passed = (self.target.now().saturating_sub(begin)).as_secs_f64();
            let passed = (passed / time.as_secs_f64()).min(1.0);
            self.says(&what, behind + n * (PARTS.0 + PARTS.1 * passed));
            for turn in turns.iter_mut().filter(|turn| !turn.done) {
                let mut lab = self.lab(&turn.kernel, allowance);
                lab.counts = turn.counts.take();
                let is_late = lab.target.now().saturating_sub(begin) >= time;
                turn.done = turn.ongoing.go_on(&mut lab, is_late)?;
                turn.counts = lab.counts;
            }
        }
        for (index, Turn { kernel, ongoing, counts, .. }) in turns.into_iter().enumerate() {
            let done = n * (PARTS.0 + PARTS.1) + index as f64 * PARTS.2;
            self.says(&format!("{} {kernel}", Mode::Episode), behind + done);
            let mut lab = self.lab(&kernel, allowance);
            lab.counts = counts;
            let measured = ongoing.finish(&mut lab).map(|outcome| vec![outcome]);
            self.store(Mode::Episode, &kernel.name, measured)?;
        }
        Ok(())
    }
}

/// A kernel whose programs take turns with others'.
struct Turn {
    kernel: Arc<Kernel>,
    ongoing: Ongoing,
    /// Sums of the performance counters so far.
    counts: Option<Counts>,
    done: bool,
}

/// Maximum number of items that take turns. A stop by the user loses no more than these, and each
/// may need 60 MB.
const IN_TURN: usize = 4;

/// Time of a mode relative to the others: a recurrence is twenty measurements, and an episode needs
/// many repetitions to distinguish a rare effect from none.
fn weight(mode: Mode) -> f64 {
    match mode {
        Mode::Recurrence => 4.0,
        Mode::Episode => 3.0,
        _ => 1.0,
    }
}

fn measure(
    lab: &mut Lab<'_>,
    mode: Mode,
    burst: u32,
    settle_ns: f64,
) -> Result<Vec<Outcome>, ModeError> {
    let one = match mode {
        Mode::Downclock => downclock::measure(lab)?,
        Mode::Upclock => {
            let settled = ramp::settled_burst(lab, settle_ns)?;
            episode::measure(lab, Mode::Upclock, settled)?
        }
        Mode::Throttle => ramp::throttle(lab)?,
        Mode::Instructions => instructions::measure(lab)?,
        Mode::Episode => episode::measure(lab, Mode::Episode, burst)?,
        Mode::Recurrence => recurrence::measure(lab, burst)?,
        Mode::Levels => return levels::measure(lab),
    };
    Ok(vec![one])
}

/// Whether any mode so far has seen an effect of the kernel.
fn saw_effect(findings: &Findings, kernel: &str) -> bool {
    findings.outcomes.iter().any(|outcome| outcome.kernel == kernel && outcome.effect)
}

/// The time that the kernel's clock takes to settle, if DOWNCLOCK was run before; otherwise 0.
fn settle_ns(findings: &Findings, kernel: &str) -> f64 {
    let of_kernel = findings.outcomes.iter().filter(|outcome| outcome.kernel == kernel);
    let settle = of_kernel.filter_map(|outcome| match &outcome.detail {
        Detail::Downclock(downclock) => downclock.settle_ns.as_ref(),
        _ => None,
    });
    settle.map(|quantity| quantity.estimate.median).fold(0.0, f64::max)
}
