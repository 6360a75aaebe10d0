//! Where threads go at the marks that they pass.
//!
//! For each mark that wants another core, [`Plan::update`] weighs a migration against what it
//! brings: it is decided only if being on the other core is worth more than the migration costs, by
//! all that is expected within the next [`HORIZON`] marks. [`Thread`] bounds how often a thread
//! migrates where expectations fail. The paper decides by the threshold alone, which made MySQL
//! slower (§5.2.4, §5.4).
//!
//! A threshold between parts of speed that code keeps on a slow core says what the slow core is
//! worth: at the threshold, neither core is better. So code that takes `f` on the fast core and `s`
//! on the slow one is better off on the fast one by `threshold * s - f`, and nothing else is to be
//! known: neither power nor prices.

use dimmer_processor::units::{Nanos, Time};

use super::learn::{Learned, Next};
use super::{Core, Mark, MarkId, Profile, Threshold};

/// The number of marks within which a migration must have paid. A guess: the paper's MySQL passes
/// some five marks in a command, and 27 commands are a transaction (§5.3.3).
const HORIZON: u32 = 256;

/// The number of migrations that a thread may make at once, until time earns further ones. A guess.
const BURST: f64 = 4.0;

/// By what threads migrate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Divides the marks.
    pub threshold: Threshold,
    /// What a migration costs one way, as measured on this machine, in the program's time.
    pub cost: Nanos,
    /// The part of its time that a thread may migrate, 0 to 1: more than the right core is worth
    /// cannot pay.
    pub most: f64,
}

impl Settings {
    /// By the threshold alone, as in the paper: what the right core is worth is not weighed. A
    /// thread only does not spend more time in migrations than in its code.
    #[must_use]
    pub const fn by_threshold(threshold: Threshold, cost: Nanos) -> Self {
        Self { threshold, cost, most: 1.0 }
    }

    /// By what is learned of the program ([`Learned`]).
    ///
    /// * `keeps`: the part of its speed that code must keep on a slow core to be there, 0 to 1.
    #[must_use]
    pub fn learning(keeps: Threshold, cost: Nanos) -> Self {
        Self { threshold: keeps, cost, most: 1.0 - keeps.value() }
    }

    /// A migration has a cost, so that no setting allows any number of them.
    fn cost_ns(&self) -> f64 {
        self.cost.as_f64().max(1.0)
    }

    fn allowed_share(&self) -> f64 {
        // `max` takes the 0 if it is not a number.
        self.most.max(0.0).clamp(0.0, 1.0)
    }

    /// How much better the fast core is until the next mark (ns); negative: the slow one is.
    fn gain(&self, next: &[Next]) -> f64 {
        let of =
            |edge: &Next| edge.probability * (self.threshold.value() * edge.slow_ns - edge.fast_ns);
        next.iter().map(of).sum()
    }
}

/// A mark's part of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Planned {
    /// The side of the threshold that it is on; `None`: nothing is known.
    wants: Option<Core>,
    /// Where a thread goes that is on the other core.
    moves_to: Option<Core>,
}

/// What is done at each mark.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    settings: Settings,
    marks: Vec<Planned>,
}

impl Plan {
    /// Nothing is known of any mark, so threads stay.
    #[must_use]
    pub const fn new(settings: Settings) -> Self {
        Self { settings, marks: Vec::new() }
    }

    /// A plan by a profile alone, as in the paper: each mark with a value wants its core, whatever
    /// a migration costs. Threads stay at the others.
    ///
    /// [`Thread`] bounds migrations here, too. [`Plan::moves_to`] alone does not, as the paper.
    ///
    /// * `marks`: the name of each mark, by its number.
    #[must_use]
    pub fn of_profile(profile: &Profile, marks: &[Mark], settings: Settings) -> Self {
        let planned = |mark| {
            let core = profile.value(mark).map(|value| settings.threshold.core(value));
            Planned { wants: core, moves_to: core }
        };
        Self { settings, marks: marks.iter().map(planned).collect() }
    }

    /// Plans again, by what is known now. A mark that is no longer known keeps its side.
    ///
    /// * `cost`: what a migration costs one way, instead of [`Settings::cost`].
    ///
    /// # Cost
    /// O(m) for m edges, 256 times: for each look at the edges, not for each mark that a thread
    /// passes.
    pub fn update(&mut self, learned: &Learned, cost: Nanos) {
        self.settings.cost = cost;
        let number = learned.marks().max(self.marks.len());
        self.marks.resize(number, Planned::default());
        let next: Vec<Vec<Next>> =
            (0..).take(number).map(|mark| learned.next(MarkId::new(mark))).collect();
        for (planned, mark) in self.marks.iter_mut().zip(0..) {
            if let Some(value) = learned.value(MarkId::new(mark)) {
                planned.wants = Some(self.settings.threshold.core(value));
            }
        }
        let gains: Vec<f64> = next.iter().map(|next| self.settings.gain(next)).collect();
        let cost = self.settings.cost_ns();
        for (planned, better) in self.marks.iter_mut().zip(advantage(&gains, &next, cost, HORIZON))
        {
            // What comes later may be better on the other core than this is on its own. The thread
            // goes there at that mark, and does not lose until then.
            let pays = match planned.wants {
                Some(Core::Fast) => better > cost,
                Some(Core::Slow) => better < -cost,
                None => false,
            };
            planned.moves_to = planned.wants.filter(|_| pays);
        }
    }

    /// The core that a mark's value asks for, whatever a migration costs; `None`: it has no value.
    #[must_use]
    pub fn wants(&self, mark: MarkId) -> Option<Core> {
        self.marks.get(mark.index())?.wants
    }

    /// The core to which a migration pays at this mark, if one does.
    #[must_use]
    pub fn moves_to(&self, mark: MarkId) -> Option<Core> {
        self.marks.get(mark.index())?.moves_to
    }
}

/// How much better it is to be on the fast core at each mark, over the next `marks` marks (ns); if
/// negative, the slow core is better. From either core, the thread migrates where that is best.
///
/// By dynamic programming. Where being on the fast core is better by more than `cost`, a thread on
/// the slow one migrates, and so the difference is `cost` there; likewise the other way.
///
/// * `gains`: how much better the fast core is until the next mark.
fn advantage(gains: &[f64], next: &[Vec<Next>], cost: f64, marks: u32) -> Vec<f64> {
    let mut better = vec![0.0; gains.len()];
    for _ in 0..marks {
        let after = |next: &Vec<Next>| -> f64 {
            let at = |edge: &Next| better.get(edge.end.index()).copied().unwrap_or(0.0);
            next.iter().map(|edge| edge.probability * f64::clamp(at(edge), -cost, cost)).sum()
        };
        better = gains.iter().zip(next).map(|(gain, next)| gain + after(next)).collect();
    }
    better
}

/// What a thread does at a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It stays where it is.
    Stay,
    /// It migrates.
    Move(Core),
}

/// A thread that passes marks.
///
/// Its migrations cost at most [`Settings::most`] of its time, and a few more at once, whatever the
/// program does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thread {
    core: Core,
    /// The time of migrations that it may make now (ns); `None` at the start: all of it.
    credit_ns: Option<f64>,
    at: Time,
}

impl Thread {
    /// A thread that starts on this core.
    #[must_use]
    pub const fn new(core: Core, now: Time) -> Self {
        Self { core, credit_ns: None, at: now }
    }

    /// The thread passes a mark. If the decision is to move, the thread counts as moved.
    ///
    /// # Cost
    /// Constant, without allocation.
    pub fn pass(&mut self, mark: MarkId, now: Time, plan: &Plan) -> Decision {
        let Some(core) = plan.moves_to(mark).filter(|core| *core != self.core) else {
            return Decision::Stay;
        };
        let cost = plan.settings.cost_ns();
        let earned = (now - self.at).as_f64() * plan.settings.allowed_share();
        let credit = self.credit_ns.map_or(BURST * cost, |credit| credit + earned);
        let credit = credit.min(BURST * cost);
        self.at = self.at.max(now);
        let (decision, left) = if credit < cost {
            (Decision::Stay, credit)
        } else {
            self.core = core;
            (Decision::Move(core), credit - cost)
        };
        self.credit_ns = Some(left);
        decision
    }

    /// The core that the thread is on.
    #[must_use]
    pub const fn core(&self) -> Core {
        self.core
    }

    /// The thread is on this core, because a migration failed or something else moved it.
    pub const fn set_core(&mut self, core: Core) {
        self.core = core;
    }
}

#[cfg(test)]
mod tests;
