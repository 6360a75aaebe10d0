//! A profile as text.

use super::{FunctionEntry, Report, Shares};
use crate::number::{counted, percent};
use crate::screen::Screen;
use crate::table::{Cell, Table};

/// Maximum number of wide functions, files, and other entries shown.
const MOST: [usize; 3] = [30, 15, 10];

pub(super) fn render(report: &Report, screen: Screen) -> String {
    let mut text = screen.fill(&summary(report));
    for note in notes(report) {
        text += &screen.fill(&note);
    }
    let has_levels = report.model.is_some();
    let programs = report.programs.iter().map(|one| (one.name.as_str(), &one.shares));
    let files = report.files.iter().map(|one| (one.path.as_str(), &one.shares));
    text += &table("program", programs, MOST[2], screen);
    text += &table("file", files, MOST[1], screen);
    text += &functions(report, has_levels, screen);
    let unknown = report.functions.iter().filter(|one| one.shares.unknown_pct > 0.0);
    let unknown = unknown.map(|one| (one.title.as_str(), &one.shares));
    text += &table("function of code that is not known", unknown, MOST[2], screen);
    let failed = report.files.iter().filter_map(|file| Some((&file.path, file.error.as_ref()?)));
    let unread = report.unread.iter().map(|one| (&one.path, &one.error));
    let failed = failed.chain(unread);
    let failed: Vec<String> = failed.map(|(path, error)| format!("{path}: {error}\n")).collect();
    if !failed.is_empty() {
        text += "\nCode not known\n";
        text += &screen.shown(&failed.concat());
    }
    text
}

/// A share in percent as a text.
fn share(pct: f64) -> String {
    percent(pct / 100.0)
}

fn summary(report: &Report) -> String {
    let total = &report.total;
    let samples = counted(usize::try_from(report.samples).unwrap_or(usize::MAX), "sample");
    let event = report.event.as_ref().map(|event| format!(" of {event}")).unwrap_or_default();
    let mut text =
        format!("{samples}{event}: {} in code of more than 128 bits", share(total.wide_pct));
    let by = total.levels_pct.as_ref().unwrap_or(&total.classes_pct);
    let parts: Vec<String> =
        by.iter().rev().map(|(name, pct)| format!("{name} {}", share(*pct))).collect();
    if !parts.is_empty() {
        text += &format!(" ({})", parts.join(", "));
    }
    text += ".";
    if total.kernel_pct > 0.0 {
        text += &format!(" {} in the kernel, which is not looked at.", share(total.kernel_pct));
    }
    if total.unknown_pct > 0.0 {
        text += &format!(" {} of them are in code that is not known.", share(total.unknown_pct));
    }
    text
}

/// What makes the shares less certain.
fn notes(report: &Report) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(why) = &report.cut_off {
        notes.push(format!("The profile is not complete: {why}."));
    }
    if report.lost > 0 {
        notes.push(format!("The kernel could not record {} events.", report.lost));
    }
    if report.other_events > 0 {
        notes.push(format!("{} samples of other events are left out.", report.other_events));
    }
    if report.has_copied_stacks {
        notes.push(
            "Stacks were recorded as copies of memory, which only perf unwinds: for callers, take \
             the text of `perf script --show-mmap-events`."
                .to_owned(),
        );
    }
    if report.model.is_none() {
        notes.push(
            "Levels are left out: nothing is known of this machine's. `dimmer probe` measures \
             them, --model takes another machine's."
                .to_owned(),
        );
    }
    notes
}

fn table<'a>(
    heading: &str,
    rows: impl Iterator<Item = (&'a str, &'a Shares)>,
    most: usize,
    screen: Screen,
) -> String {
    let header = [Cell::from(heading), Cell::right("samples"), Cell::right("in wide code")];
    let mut table = Table::new(header.into_iter().chain([Cell::right("not known")]));
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    for (name, shares) in rows.iter().take(most) {
        table.row([
            Cell::from(*name),
            Cell::right(share(shares.share_pct)),
            Cell::right(share(shares.wide_pct)),
            Cell::right(share(shares.unknown_pct)),
        ]);
    }
    format!("\n{}{}", table.render(screen), rest(rows.len(), most, screen))
}

fn rest(all: usize, most: usize, screen: Screen) -> String {
    match all.checked_sub(most) {
        None | Some(0) => String::new(),
        Some(rest) => screen.shown(&format!("and {rest} more; --json=FILE has all.\n")),
    }
}

fn functions(report: &Report, has_levels: bool, screen: Screen) -> String {
    let wide = report.functions.iter().filter(|function| function.shares.wide_pct > 0.0);
    let wide: Vec<&FunctionEntry> = wide.collect();
    if wide.is_empty() {
        return String::new();
    }
    let right = |name: &str| Cell::right(name);
    let left = |name: &str| Cell::from(name);
    let level = has_levels.then(|| left("level"));
    let callers = report.has_callers.then(|| left("called by"));
    let first = [left("wide function"), right("samples"), right("in wide code"), left("class")];
    let mut table = Table::new(first.into_iter().chain(level).chain([left("file")]).chain(callers));
    for one in wide.iter().take(MOST[0]) {
        let level = has_levels.then(|| left(one.level.as_deref().unwrap_or_default()));
        let file = one.file.as_deref().unwrap_or_default();
        let file = file.rsplit('/').next().unwrap_or_default();
        let callers = report.has_callers.then(|| left(&called_by(one)));
        let cells = [
            left(&one.title),
            right(&share(one.shares.share_pct)),
            right(&share(one.shares.wide_pct)),
            left(one.near.unwrap_or_default()),
        ];
        table.row(cells.into_iter().chain(level).chain([left(file)]).chain(callers));
    }
    format!("\n{}{}", table.render(screen), rest(wide.len(), MOST[0], screen))
}

/// The caller with the largest share, and its part of the function's samples.
fn called_by(function: &FunctionEntry) -> String {
    let Some(first) = function.callers.first() else { return String::new() };
    let part = first.share_pct / function.shares.share_pct.max(f64::MIN_POSITIVE);
    let others = match function.callers.len() - 1 {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    format!("{} ({}){others}", first.title, percent(part.min(1.0)))
}
