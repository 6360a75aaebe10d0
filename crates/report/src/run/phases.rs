//! What `dimmer run --phases` shows of threads that migrated at marks. `docs/phases-run-json.md`
//! describes the document.

use std::fmt::Write as _;

use dimmer_host::root::format_cpu_list;
use dimmer_launch::account::{Migrating, MigratingThread};
use serde::Serialize;

use super::threads::more;
use crate::number::{counted, percent};
use crate::screen::Screen;

/// Maximum number of threads and marks shown: the threads that passed most marks, and the marks
/// that were passed most.
const MOST_TOLD: usize = 10;

/// The document `dimmer/phases-run/1`.
pub fn document(migrating: &Migrating) -> impl Serialize {
    Document::new(migrating)
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    schema: &'static str,
    cpus: Vec<u32>,
    left: u64,
    came_home: u64,
    keeps: Option<f64>,
    threads: Vec<ThreadEntry>,
    threads_summed: usize,
    functions: Vec<FunctionEntry<'a>>,
    learned: Vec<LearnedEntry<'a>>,
    problems: &'a [String],
}

#[derive(Debug, Serialize)]
struct ThreadEntry {
    thread: u32,
    passed: u64,
    left: u64,
    came_home: u64,
}

#[derive(Debug, Serialize)]
struct FunctionEntry<'a> {
    name: &'a str,
    calls: u64,
}

#[derive(Debug, Serialize)]
struct LearnedEntry<'a> {
    name: &'a str,
    keeps: f64,
}

impl<'a> Document<'a> {
    fn new(migrating: &'a Migrating) -> Self {
        let thread = |of: &MigratingThread| ThreadEntry {
            thread: of.thread,
            passed: of.marks,
            left: of.left,
            came_home: of.came_home,
        };
        let functions = migrating.marks.iter();
        let learned = migrating.learned.iter();
        Self {
            schema: "dimmer/phases-run/1",
            cpus: migrating.cpus.iter().map(|cpu| cpu.index()).collect(),
            left: sum(migrating, |thread| thread.left),
            came_home: sum(migrating, |thread| thread.came_home),
            keeps: migrating.keeps,
            threads: migrating.threads.iter().map(thread).collect(),
            threads_summed: migrating.threads_summed,
            functions: functions
                .map(|(name, calls)| FunctionEntry { name, calls: *calls })
                .collect(),
            learned: learned.map(|(name, keeps)| LearnedEntry { name, keeps: *keeps }).collect(),
            problems: &migrating.problems,
        }
    }
}

fn sum(migrating: &Migrating, of: fn(&MigratingThread) -> u64) -> u64 {
    migrating.threads.iter().map(of).fold(0, u64::saturating_add)
}

/// The summary as text.
pub fn text(migrating: &Migrating, screen: Screen) -> String {
    screen.shown(&told(migrating))
}

fn told(migrating: &Migrating) -> String {
    let sum = |of: fn(&MigratingThread) -> u64| sum(migrating, of);
    let gone = migrating.threads.iter().filter(|thread| thread.left > 0).count();
    let all = migrating.threads.len() + migrating.threads_summed.saturating_sub(1);
    let mut text = format!(
        "Phases: {gone} of {} migrated to cpu {}, {} times, and came home {} times.\n",
        counted(all, "thread"),
        format_cpu_list(&migrating.cpus),
        sum(|thread| thread.left),
        sum(|thread| thread.came_home),
    );
    let mut threads: Vec<&MigratingThread> = migrating.threads.iter().collect();
    threads.sort_by_key(|thread| std::cmp::Reverse(thread.marks));
    for thread in threads.iter().take(MOST_TOLD) {
        let MigratingThread { thread, marks, left, came_home } = thread;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "    thread {thread:<33} {marks:>10} marks {left:>8} there {came_home:>8} back"
        );
    }
    more(&mut text, threads.len().saturating_sub(MOST_TOLD));
    let mut marks: Vec<&(String, u64)> = migrating.marks.iter().collect();
    marks.sort_by_key(|(_, calls)| std::cmp::Reverse(*calls));
    for (name, calls) in marks.iter().take(MOST_TOLD) {
        let _ = writeln!(text, "    {name:<40} {calls:>10} times");
    }
    more(&mut text, marks.len().saturating_sub(MOST_TOLD));
    add_learned(&mut text, migrating);
    for problem in &migrating.problems {
        let _ = writeln!(text, "  {problem}");
    }
    text
}

/// What was learned, the functions that lose least on a slow CPU first.
fn add_learned(text: &mut String, migrating: &Migrating) {
    let Some(keeps) = migrating.keeps else { return };
    let slow = migrating.learned.iter().filter(|(_, value)| *value > keeps).count();
    let _ = writeln!(
        text,
        "What follows {slow} of {} loses at most {} of its speed on these CPUs{}",
        counted(migrating.learned.len(), "function"),
        percent(1.0 - keeps),
        if migrating.learned.is_empty() { "; none was tried there." } else { ":" },
    );
    let mut learned: Vec<&(String, f64)> = migrating.learned.iter().collect();
    learned.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    for (name, value) in learned.iter().take(MOST_TOLD) {
        let _ = writeln!(text, "    {name:<40} keeps {:>8}", percent(*value));
    }
    more(text, learned.len().saturating_sub(MOST_TOLD));
}

#[cfg(test)]
mod tests {
    use dimmer_processor::units::CpuId;

    use super::*;

    #[test]
    fn threads_are_told_with_how_often_they_migrated() {
        let thread = |thread, marks, left| MigratingThread { thread, marks, left, came_home: left };
        let migrating = Migrating {
            cpus: vec![CpuId::new(1)],
            threads: vec![thread(70, 5, 0), thread(71, 900, 450)],
            marks: vec![("chase".to_owned(), 905)],
            problems: vec!["/l/x.so: nothing is hooked here".to_owned()],
            threads_summed: 0,
            ..Migrating::default()
        };
        let text = told(&migrating).replace('\u{a0}', " ");
        let first =
            "Phases: 1 of 2 threads migrated to cpu 1, 450 times, and came home 450 times.\n";
        assert!(text.starts_with(first), "{text}");
        let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part} in {text}"));
        assert!(place("thread 71") < place("thread 70"), "the most marks first: {text}");
        assert!(place("chase") < place("/l/x.so: nothing"), "{text}");
        let learned = Migrating {
            keeps: Some(0.9),
            learned: vec![("parse".to_owned(), 0.5), ("chase".to_owned(), 0.96)],
            ..migrating
        };
        let text = told(&learned).replace('\u{a0}', " ");
        assert!(text.contains("What follows 1 of 2 functions loses at most 10.0 %"), "{text}");
        let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part} in {text}"));
        assert!(place("keeps   96.0 %") < place("keeps   50.0 %"), "{text}");
        let many = Migrating { threads: vec![thread(1, 1, 1); 15], ..Migrating::default() };
        assert!(told(&many).replace('\u{a0}', " ").contains("    5 others\n"));
    }
}
