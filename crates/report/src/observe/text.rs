//! The observations as text.

use std::fmt::Write as _;
use std::path::Path;

use dimmer_processor::class::InstructionClass;

use super::boost::Boost;
use super::{Distribution, Function, Outlook, Report};
use crate::number::{counted, grouped, length, percent, time};
use crate::screen::Screen;
use crate::shell;
use crate::table::Table;

/// Maximum number of functions shown.
const MOST: usize = 20;

/// Columns for each function.
pub(crate) const HEADER: [&str; 9] = [
    "function",
    "in",
    "class",
    "level",
    "calls/s",
    "a call takes",
    "until the next",
    "time",
    "costs",
];

pub(super) fn render(report: &Report, screen: Screen) -> String {
    screen.shown(&rendered(report, screen))
}

fn rendered(report: &Report, screen: Screen) -> String {
    let mut text = format!(
        "\nObserved for {} s, {} s of it on CPUs, in {} with {}.\n",
        grouped(report.lasted_s, 1),
        grouped(report.cpu_s, 1),
        counted(report.processes, "process"),
        counted(report.threads, "thread"),
    );
    if report.processes == 0 {
        if report.unreadable.is_empty() {
            text.push_str(
                "Nothing was seen: the loader did not load the library with the hooks, DIMMER_OFF is set, \
                 or there could be no file for what it sees.\n",
            );
        }
        complain(&mut text, report);
        return text;
    }
    let hooked: usize = report.files.iter().map(|file| file.hooked).sum();
    // Writing to a string cannot fail, here and below.
    let what = if report.hooked_names.is_empty() {
        format!("with {} instructions", report.hooked_classes.join(", "))
    } else if report.hooked_names == ["auto"] {
        "to choose marks from".to_owned()
    } else {
        "by name".to_owned()
    };
    let _ = writeln!(text, "Hooked: {} {what}.", counted(hooked, "function"));
    if let Some(share) = report.hooks_share {
        let _ = writeln!(
            text,
            "Observing took {} of the program's time in hooks, and {} s beside it.",
            percent(share),
            grouped(report.observer_cpu_s, 2)
        );
    }
    for file in &report.files {
        if let Some(problem) = &file.problem {
            let _ = writeln!(text, "{}: {problem}", file.path);
        } else if file.hooked < file.wide_functions {
            let rest = file.wide_functions - file.hooked;
            let verb = if rest == 1 { "is" } else { "are" };
            let rest = counted(rest, "function");
            let _ = writeln!(
                text,
                "{}: {rest} like that {verb} not hooked; `dimmer scan` says why.",
                file.path
            );
        }
        if file.entered_unseen > 0 {
            let (verb, whose) =
                if file.entered_unseen == 1 { ("is", "its") } else { ("are", "their") };
            let _ = writeln!(
                text,
                "{}: {} of the hooked functions {verb} also entered in the middle, where no hook can be: \
                 not all of {whose} calls are counted; `dimmer scan` says of which.",
                file.path, file.entered_unseen
            );
        }
    }
    complain(&mut text, report);
    if report.functions.is_empty() {
        let is_unseen = report.files.iter().any(|file| file.entered_unseen > 0);
        text.push_str(match is_unseen {
            true => "No call of them was counted, but there may have been calls.\n",
            false => "None of them was called.\n",
        });
        return text;
    }
    let has_levels = report.model.is_some();
    let columns = |cells: Vec<String>| -> Vec<String> {
        let cells = cells.into_iter().enumerate();
        cells
            .filter(|(index, _)| has_levels || !matches!(index, 3 | 8))
            .map(|(_, cell)| cell)
            .collect()
    };
    let mut table = Table::new(columns(HEADER.map(str::to_owned).to_vec()));
    for function in report.functions.iter().take(MOST) {
        table.row(columns(row(function)));
    }
    text.push('\n');
    text.push_str(&table.render(screen));
    if report.functions.len() > MOST {
        let rest = report.functions.len() - MOST;
        let _ = writeln!(text, "and {} that took less; --json=FILE has all.", length(rest));
    }
    text.push('\n');
    text.push_str(&conclusion(report, screen));
    text
}

/// Reports what was not observed.
fn complain(text: &mut String, report: &Report) {
    for problem in &report.unreadable {
        let _ = writeln!(text, "{problem}");
    }
    if report.threads_left_out > 0 {
        let _ = writeln!(
            text,
            "Some threads were not seen: there were too many, or they could not be counted."
        );
    }
}

/// What the calls cost, and what to do about it.
fn conclusion(report: &Report, screen: Screen) -> String {
    let mut text = String::new();
    for sentence in sentences(report) {
        text.push_str(&screen.fill(&sentence));
    }
    for (index, outlook) in report.ways.iter().enumerate() {
        let (what, command) = words(outlook, report);
        let end = command.map_or_else(|| ".".to_owned(), |command| format!(": {command}"));
        let _ = writeln!(text, "{}{what}{end}", if index == 0 { "Best: " } else { "Else: " });
    }
    text
}

/// What the calls cost, and whether a faster clock for them pays, in sentences.
pub(crate) fn sentences(report: &Report) -> Vec<String> {
    costs(report).into_iter().chain(report.boost.as_ref().map(Boost::sentence)).collect()
}

fn costs(report: &Report) -> Vec<String> {
    if report.functions.is_empty() {
        let is_unseen = report.files.iter().any(|file| file.entered_unseen > 0);
        let sentence = match is_unseen {
            true => "No call of the hooked functions was counted, but there may have been calls.",
            false => "None of the hooked functions was called.",
        };
        return vec![sentence.to_owned()];
    }
    let Some(lost) = report.lost else {
        let why = report.lost_unknown.as_deref().unwrap_or_default();
        return vec![format!("What they cost the code around them is not told: {why}.")];
    };
    let source = report.model.as_ref().map(|model| model.source.as_str()).unwrap_or_default();
    if report.functions.iter().all(|function| function.lost_share.unwrap_or_default() <= 0.0) {
        return vec![without_loss(report, source)];
    }
    let between_long = if lost.between_long_share > 0.0 {
        format!(", {} at a lower clock between long calls", percent(lost.between_long_share))
    } else {
        String::new()
    };
    let mut sentences = vec![format!(
        "By the model, the code around these calls loses {} of its time on CPUs: {} at a lower clock after \
         calls that come again within {}, {} in stalls and throttling around the others{between_long}.",
        percent(lost.share),
        percent(lost.kept_share),
        time(lost.kept_below_ns),
        percent(lost.episodes_share),
    )];
    if let Some(clock) = report.clock {
        sentences.push(format!(
            "Measured directly, the clock right after calls stood at {} [{}, {}] of that before calls after longer \
             gaps ({} and {} samples).",
            percent(clock.ratio),
            percent(clock.ci95.0),
            percent(clock.ci95.1),
            length(clock.after),
            length(clock.before)
        ));
    }
    sentences
}

/// Why nothing is lost, by the model from `source`.
fn without_loss(report: &Report, source: &str) -> String {
    let lowest = report.model.as_ref().and_then(|model| model.levels.first());
    if report.functions.iter().any(|function| function.level.as_ref() != lowest) {
        return format!(
            "By the model ({source}), the code around these calls loses nothing measurable: nothing to gain."
        );
    }
    let known = report.without_effect.as_deref().unwrap_or(source);
    format!("They ask for no level on this machine ({known}): nothing to gain.")
}

/// A way to avoid the loss in words, and the command for it.
pub(crate) fn words(outlook: &Outlook, report: &Report) -> (String, Option<String>) {
    let gain = match outlook.gain {
        None => "what it gives back is not known".to_owned(),
        Some((least, most)) if most - least < 5e-4 => format!("gives back {}", percent(most)),
        Some((least, most)) if least < 0.0 => format!(
            "gives back {}, but takes up to {} more where it is narrower",
            percent(most),
            percent(most - least)
        ),
        Some((least, most)) => format!("gives back {} to {}", percent(least), percent(most)),
    };
    match outlook.way {
        "leave" => ("leave it as it is".to_owned(), None),
        "narrow" if report.source == "uprobes" => {
            (format!("run it with narrower code, {gain}"), None)
        }
        "narrow" => {
            let classes = report.functions.iter().filter_map(|function| function.class.as_deref());
            let widest: Option<InstructionClass> = classes.filter_map(|c| c.parse().ok()).max();
            // Code of at most 256 bits is not narrowed by hiding only wider features.
            let is_wider = widest.is_none_or(|class| class >= InstructionClass::Light512);
            let width = if is_wider { "" } else { "--width 128 " };
            let command = shell::line(&report.command);
            let command = format!("dimmer run --narrow {width}-- {command}");
            (format!("narrow it, {gain}"), Some(command))
        }
        "move" => {
            let takes = report.hand_off.as_ref().map(|hand_off| time(hand_off.mean_ns));
            let gain = match (outlook.gain, takes) {
                (Some((_, most)), Some(takes)) if most < 0.0 => {
                    format!("but moving, {takes} a call at such gaps, takes more than they lose")
                }
                (Some((_, most)), Some(takes)) => format!(
                    "gives back {} at most, as moving takes {takes} a call at such gaps",
                    percent(most)
                ),
                _ => "but what moving takes could not be measured".to_owned(),
            };
            let may_gain = outlook.gain.is_some_and(|(_, most)| most > 0.0);
            let command = (may_gain && report.source != "uprobes")
                .then(|| format!("dimmer run --migrate -- {}", shell::line(&report.command)));
            (format!("move it to another core, {gain}"), command)
        }
        _ => {
            let gain = match outlook.gain {
                Some((_, most)) => {
                    format!("gives back {} at most; no command does it yet", percent(most))
                }
                None => "but this machine does not let it be governed".to_owned(),
            };
            (format!("govern the clock around it, {gain}"), None)
        }
    }
}

pub(crate) fn row(function: &Function) -> Vec<String> {
    let median = |times: &Option<Distribution>| {
        let median = times.as_ref().and_then(|times| times.quantiles.get("p50"));
        median.map(|ns| time(*ns)).unwrap_or_default()
    };
    let file = Path::new(&function.file).file_name().unwrap_or_default();
    vec![
        function.title.clone(),
        file.to_string_lossy().into_owned(),
        function.class.clone().unwrap_or_default(),
        function.level.clone().unwrap_or_default(),
        grouped(function.calls_per_s, 0),
        median(&function.lasted_ns),
        median(&function.gap_after_ns),
        function.time_share.map(percent).unwrap_or_default(),
        function.lost_share.map(percent).unwrap_or_default(),
    ]
}
