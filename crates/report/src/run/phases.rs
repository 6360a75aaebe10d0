//! What `dimmer run --phases` shows of threads that migrated at marks.

use std::fmt::Write as _;

use dimmer_host::root::format_cpu_list;
use dimmer_launch::account::{Migrating, MigratingThread};

use super::threads::more;
use crate::number::counted;
use crate::screen::Screen;

/// Maximum number of threads and marks shown: the threads that passed most marks, and the marks
/// that were passed most.
const MOST_TOLD: usize = 10;

/// The summary as text.
pub fn text(migrating: &Migrating, screen: Screen) -> String {
    screen.shown(&told(migrating))
}

fn told(migrating: &Migrating) -> String {
    let sum = |of: fn(&MigratingThread) -> u64| {
        migrating.threads.iter().map(of).fold(0, u64::saturating_add)
    };
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
    for problem in &migrating.problems {
        let _ = writeln!(text, "  {problem}");
    }
    text
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
        };
        let text = told(&migrating).replace('\u{a0}', " ");
        let first =
            "Phases: 1 of 2 threads migrated to cpu 1, 450 times, and came home 450 times.\n";
        assert!(text.starts_with(first), "{text}");
        let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part} in {text}"));
        assert!(place("thread 71") < place("thread 70"), "the most marks first: {text}");
        assert!(place("chase") < place("/l/x.so: nothing"), "{text}");
        let many = Migrating { threads: vec![thread(1, 1, 1); 15], ..Migrating::default() };
        assert!(told(&many).replace('\u{a0}', " ").contains("    5 others\n"));
    }
}
