//! Samples by program, file, function and caller, and as folded stacks.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::code::{Around, Function, Places};
use crate::{Profile, Weight};

/// The samples of a program, file or function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// All of them.
    pub all: Weight,
    /// The events by the code around the sampled place.
    pub by: BTreeMap<Around, u64>,
}

impl Sum {
    fn add(&mut self, around: Around, weight: Weight) {
        self.all.add(weight);
        let events = self.by.entry(around).or_default();
        *events = events.saturating_add(weight.events);
    }

    /// The events in wide code.
    #[must_use]
    pub fn wide(&self) -> u64 {
        let wide = self.by.iter().filter(|(around, _)| matches!(around, Around::Wide { .. }));
        wide.map(|(_, events)| *events).sum()
    }

    /// The most demanding code among the samples.
    #[must_use]
    pub fn most_demanding(&self) -> Option<Around> {
        self.by.keys().next_back().copied()
    }
}

/// The samples of a function, and the functions that called it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionSum {
    /// Its samples.
    pub sum: Sum,
    /// Events by the index of the calling function, of those samples that have a caller.
    pub callers: BTreeMap<usize, u64>,
}

/// Sums over a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// All samples.
    pub total: Sum,
    /// By index of the program.
    pub programs: BTreeMap<u32, Sum>,
    /// By index of the file.
    pub files: BTreeMap<u32, Sum>,
    /// By index of the function in [`Places::functions`].
    pub functions: BTreeMap<usize, FunctionSum>,
    /// Whether any sample has a caller.
    pub has_callers: bool,
}

impl Summary {
    /// Sums up a profile whose places were looked up.
    #[must_use]
    pub fn of(profile: &Profile, places: &Places) -> Self {
        let mut summary = Self::default();
        for (stack, weight) in &profile.stacks {
            let mut frames = stack.frames.iter().filter_map(|place| places.at(place));
            let Some(first) = frames.next() else { continue };
            let around = first.around;
            summary.total.add(around, *weight);
            summary.programs.entry(stack.program).or_default().add(around, *weight);
            if let Some(Function::OfFile { file, .. }) = places.functions.get(first.function) {
                summary.files.entry(*file).or_default().add(around, *weight);
            }
            let own = summary.functions.entry(first.function).or_default();
            own.sum.add(around, *weight);
            if let Some(caller) = frames.next() {
                summary.has_callers = true;
                let events = own.callers.entry(caller.function).or_default();
                *events = events.saturating_add(weight.events);
            }
        }
        summary
    }
}

/// Folded stacks, for flame graphs and speedscope: a line for each stack, the program first, then
/// its functions from the outermost to the sampled one, then, for code that is wide or not known, a
/// frame in brackets; and the number of samples.
///
/// * `title`: the name of a function in it.
/// * `mark`: what the frame in brackets has; `None` for no such frame.
#[must_use]
pub fn folded(
    profile: &Profile,
    places: &Places,
    title: impl Fn(&Function) -> String,
    mark: impl Fn(Around) -> Option<String>,
) -> String {
    let titles: Vec<String> = places.functions.iter().map(title).collect();
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for (stack, weight) in &profile.stacks {
        let program = profile.programs.get(stack.program as usize);
        let mut line = part(program.map_or("", String::as_str));
        let found: Vec<_> = stack.frames.iter().filter_map(|place| places.at(place)).collect();
        for one in found.iter().rev() {
            line.push(';');
            line.push_str(&part(&titles[one.function]));
        }
        if let Some(mark) = found.first().and_then(|first| mark(first.around)) {
            // Writing to a string cannot fail, here and below.
            let _ = write!(line, ";[{mark}]");
        }
        *lines.entry(line).or_default() += weight.samples;
    }
    let mut text = String::new();
    for (line, samples) in lines {
        let _ = writeln!(text, "{line} {samples}");
    }
    text
}

/// A name without the characters that separate frames and lines.
fn part(name: &str) -> String {
    name.replace(';', ":").replace(|c: char| c.is_control(), " ")
}
