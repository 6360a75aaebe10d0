//! Steps of threads: how they are drawn, what comes of blocks, and how they are written.

use std::fmt::Write as _;

use super::Draws;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Length {
    Us(f64),
    Instructions(f64),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Run {
        code: usize,
        length: Length,
    },
    Sleep {
        us: f64,
    },
    Lock(usize),
    Unlock(usize),
    /// Requests the P-state of this number of the model.
    Pstate(usize),
    Repeat {
        passes: usize,
        steps: Vec<Step>,
    },
    /// The shares are such that this branch is taken.
    Choose {
        taken: usize,
        branches: Vec<Vec<Step>>,
    },
}

impl Step {
    /// These steps, with each step in the place of which `change` puts others, also in blocks.
    pub(crate) fn changed(steps: &[Self], change: &impl Fn(&Self) -> Vec<Self>) -> Vec<Self> {
        let one = |step: &Self| match step {
            Self::Repeat { passes, steps } => {
                vec![Self::Repeat { passes: *passes, steps: Self::changed(steps, change) }]
            }
            Self::Choose { taken, branches } => {
                let branches = branches.iter().map(|steps| Self::changed(steps, change));
                vec![Self::Choose { taken: *taken, branches: branches.collect() }]
            }
            step => change(step),
        };
        steps.iter().flat_map(one).collect()
    }

    /// These steps without those that are blocks, but with what is in these, in order.
    pub(crate) fn single(steps: &[Self]) -> Vec<&Self> {
        fn one(step: &Step) -> Vec<&Step> {
            match step {
                Step::Repeat { steps, .. } => Step::single(steps),
                Step::Choose { branches, .. } => {
                    branches.iter().flat_map(|steps| Step::single(steps)).collect()
                }
                step => vec![step],
            }
        }
        steps.iter().flat_map(one).collect()
    }

    /// What a round of these steps is, with blocks written out: numbers of the steps of
    /// [`Step::single`].
    pub(crate) fn written_out(steps: &[Self]) -> Vec<usize> {
        let mut first = 0;
        let one = |step: &Self| {
            let (passes, numbers) = match step {
                Self::Repeat { passes, steps } => (*passes, Self::written_out(steps)),
                Self::Choose { taken, branches } => {
                    let before = Self::single(&branches[..*taken].concat()).len();
                    let numbers = Self::written_out(&branches[*taken]).into_iter();
                    (1, numbers.map(|number| before + number).collect())
                }
                _ => (1, vec![0]),
            };
            let start = first;
            first += Self::single(std::slice::from_ref(step)).len();
            vec![numbers; passes].concat().into_iter().map(move |number| start + number)
        };
        steps.iter().flat_map(one).collect()
    }

    /// These steps, some of them with a lock held, also in blocks. Locks within locks have higher
    /// numbers, so that no threads wait for each other.
    pub(super) fn locked(steps: &[Self], draws: &mut Draws, deep: usize) -> Vec<Self> {
        let mut locked: Vec<Self> = steps.to_vec();
        for step in &mut locked {
            match step {
                Self::Repeat { steps, .. } => *steps = Self::locked(steps, draws, deep + 1),
                Self::Choose { branches, .. } => {
                    for steps in branches {
                        *steps = Self::locked(steps, draws, deep + 1);
                    }
                }
                _ => {}
            }
        }
        if !locked.is_empty() && draws.is(0.7) {
            let number = 2 * deep + draws.below(2);
            let from = draws.below(locked.len());
            let to = from + 1 + draws.below(locked.len() - from);
            locked.insert(to, Self::Unlock(number));
            locked.insert(from, Self::Lock(number));
        }
        locked
    }

    /// Adds choices to these steps, also in blocks, and steps that are skipped: those of no time,
    /// or of less than an instruction, that distributions have drawn.
    pub(super) fn with_chance(steps: &[Self], draws: &mut Draws, codes: usize) -> Vec<Self> {
        let mut with: Vec<Self> = Vec::new();
        for step in steps {
            let step = match step {
                Self::Repeat { passes, steps } => {
                    let steps = Self::with_chance(steps, draws, codes);
                    Self::Repeat { passes: *passes, steps }
                }
                step => step.clone(),
            };
            if draws.is(0.2) {
                let code = draws.below(codes);
                let length = Length::Us(draws.size(1.0, 1000.0));
                let other = vec![Self::Run { code, length }];
                let mut branches = vec![Vec::new(), other];
                let taken = draws.below(3);
                branches.insert(taken, vec![step]);
                with.push(Self::Choose { taken, branches });
            } else {
                with.push(step);
            }
            if draws.is(0.2) {
                let code = draws.below(codes);
                with.push(match draws.below(4) {
                    0 => Self::Sleep { us: 0.0 },
                    1 => Self::Run { code, length: Length::Us(0.0) },
                    2 => Self::Run { code, length: Length::Instructions(0.75) },
                    _ => Self::Run { code, length: Length::Instructions(1.25) },
                });
            }
        }
        with
    }

    /// The values of these steps that a distribution can stand for.
    pub(super) fn values(steps: &[Self]) -> Vec<f64> {
        let one = |step: &Self| match step {
            Self::Sleep { us: value }
            | Self::Run { length: Length::Us(value) | Length::Instructions(value), .. } => {
                vec![*value]
            }
            Self::Lock(_) | Self::Unlock(_) | Self::Pstate(_) => Vec::new(),
            Self::Repeat { passes, steps } => [vec![*passes as f64], Self::values(steps)].concat(),
            Self::Choose { branches, .. } => {
                branches.iter().flat_map(|steps| Self::values(steps)).collect()
            }
        };
        steps.iter().flat_map(one).collect()
    }

    /// `drawn`: the values in the place of which the name of a distribution stands.
    pub(super) fn toml(&self, drawn: &[f64], text: &mut String) {
        let number = |value: f64| {
            if drawn.contains(&value) { format!("\"{value:?}\"") } else { format!("{value:?}") }
        };
        _ = match self {
            Self::Sleep { us } => writeln!(text, "  {{ sleep_us = {} }},", number(*us)),
            Self::Lock(number) => writeln!(text, "  {{ lock = {number} }},"),
            Self::Unlock(number) => writeln!(text, "  {{ unlock = {number} }},"),
            Self::Pstate(number) => writeln!(text, "  {{ pstate = \"P{number}\" }},"),
            Self::Run { code, length: Length::Us(us) } => {
                writeln!(text, "  {{ run = \"{code}\", us = {} }},", number(*us))
            }
            Self::Run { code, length: Length::Instructions(n) } => {
                writeln!(text, "  {{ run = \"{code}\", instructions = {} }},", number(*n))
            }
            Self::Repeat { passes, steps } => {
                let name = format!("\"about {passes}\"");
                let is_drawn = drawn.contains(&(*passes as f64));
                let passes = if is_drawn { name } else { passes.to_string() };
                _ = writeln!(text, "  {{ repeat = {passes}, steps = [");
                steps.iter().for_each(|step| step.toml(drawn, text));
                writeln!(text, "  ] }},")
            }
            Self::Choose { taken, branches } => {
                text.push_str("  { choose = [\n");
                for (index, steps) in branches.iter().enumerate() {
                    let share = if index == *taken { 1e9 } else { 1e-9 };
                    _ = writeln!(text, "  {{ share = {share:?}, steps = [");
                    steps.iter().for_each(|step| step.toml(drawn, text));
                    text.push_str("  ] },\n");
                }
                writeln!(text, "  ] }},")
            }
        };
    }
}
