//! Keeping threads off dedicated cores by affinity, and letting them back, also in place of who has
//! done the one and was killed before the other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use dimmer_processor::units::CpuId;

use crate::root::{Root, format_cpu_list, parse_cpu_list};
use crate::{affinity, process};

/// Threads that are kept off cores, and where they might run before. Nothing is undone when it is
/// dropped: who wants that dedicates no core at the end.
#[derive(Debug, Default)]
pub struct KeptOff {
    /// What they are kept off.
    dedicated: Vec<CpuId>,
    /// Where each thread that there was might run before.
    known: BTreeMap<u32, Vec<CpuId>>,
    /// Where threads might run before, by where they may since: for those that have been started
    /// meanwhile.
    before: BTreeMap<Vec<CpuId>, Vec<CpuId>>,
}

/// A thread that is kept off cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    thread: u32,
    /// Where it may run.
    now: Vec<CpuId>,
    /// Where it might before.
    before: Vec<CpuId>,
}

impl KeptOff {
    /// None so far.
    #[must_use]
    pub const fn new() -> Self {
        Self { dedicated: Vec::new(), known: BTreeMap::new(), before: BTreeMap::new() }
    }

    /// Keeps these threads off the cores, and with them those that they start, threads and
    /// programs; and lets them on those again that they were kept off before and that are not among
    /// these. A thread that may run nowhere else stays, one that has chosen other cores by itself
    /// keeps to these, and one that this process may not change is left; so is whom `is_spared`
    /// names, which is asked about those alone that would be kept off or let back. `threads` are
    /// all that there are: others are forgotten.
    ///
    /// Whether any was changed. A thread that was just being started then may have been missed, and
    /// is found the next time.
    ///
    /// # Cost
    /// One or two system calls a thread.
    pub fn keep_off(
        &mut self,
        threads: &[u32],
        dedicated: &[CpuId],
        is_spared: impl Fn(u32) -> bool,
    ) -> bool {
        self.keep_off_noted(threads, dedicated, is_spared, |_| ())
    }

    /// As [`Self::keep_off`]; all that are kept off then are noted before any is, for [`let_back`].
    pub fn keep_off_noted(
        &mut self,
        threads: &[u32],
        dedicated: &[CpuId],
        is_spared: impl Fn(u32) -> bool,
        note: impl FnOnce(&[Kept]),
    ) -> bool {
        let earlier = std::mem::replace(&mut self.dedicated, dedicated.to_vec());
        let known = std::mem::take(&mut self.known);
        let (mut changes, mut kept) = (Vec::new(), Vec::new());
        for thread in threads.iter().copied() {
            // One that has ended meanwhile is no error.
            let Ok(now) = affinity::allowed_to(thread) else { continue };
            let before = match known.get(&thread) {
                Some(before) if without(before, &earlier) == now => before,
                // It has been put elsewhere since.
                Some(_) => &now,
                None => self.before.get(&now).unwrap_or(&now),
            };
            let (before, cpus) = (before.clone(), without(before, dedicated));
            if cpus != now {
                if is_spared(thread) {
                    continue;
                }
                changes.push((thread, cpus.clone()));
            }
            if cpus != before {
                kept.push(Kept { thread, now: cpus, before: before.clone() });
            }
            self.known.insert(thread, before);
        }
        note(&kept);
        let mut is_changed = false;
        for (thread, cpus) in changes {
            is_changed |= affinity::allow_thread(Some(thread), &cpus).is_ok();
        }
        // Only now: who has come upon these by itself was not kept off.
        self.before.extend(kept.into_iter().map(|kept| (kept.now, kept.before)));
        if dedicated.is_empty() && !is_changed {
            // Nobody is kept off any more: who comes upon these later has chosen them.
            self.before.clear();
        }
        is_changed
    }
}

/// What is written down of threads that are kept off, a line each: the thread, when it began, where
/// it may run, and where it might before.
#[must_use]
pub fn written(root: &Root, kept: &[Kept]) -> String {
    let mut text = String::new();
    for Kept { thread, now, before } in kept {
        let Some(began) = process::began(root, *thread) else { continue };
        let [now, before] = [now, before].map(|cpus| format_cpu_list(cpus));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{thread} {began} {now} {before}");
    }
    text
}

/// Lets back the threads that such a text says were kept off, and what these have started, where
/// they still may run as it says; how many. Lines that are none are skipped.
pub fn let_back(root: &Root, text: &str) -> usize {
    let mut done = BTreeSet::new();
    for line in text.lines() {
        let Some((kept, began)) = read(line) else { continue };
        if process::began(root, kept.thread) != Some(began) {
            continue;
        }
        let family = process::family(root, kept.thread);
        for thread in family.into_iter().map(|(_, thread)| thread).chain([kept.thread]) {
            let is_kept = affinity::allowed_to(thread).is_ok_and(|now| now == kept.now);
            if is_kept && affinity::allow_thread(Some(thread), &kept.before).is_ok() {
                done.insert(thread);
            }
        }
    }
    done.len()
}

/// A line, and when its thread began.
fn read(line: &str) -> Option<(Kept, u64)> {
    let mut words = line.split(' ');
    let thread = words.next()?.parse().ok()?;
    let began = words.next()?.parse().ok()?;
    let now = parse_cpu_list(words.next()?)?;
    let before = parse_cpu_list(words.next()?)?;
    // Nobody is let back to fewer.
    let is_whole = words.next().is_none() && now.iter().all(|cpu| before.contains(cpu));
    is_whole.then_some((Kept { thread, now, before }, began))
}

/// Those that are not dedicated; all of them if there is none besides.
fn without(cpus: &[CpuId], dedicated: &[CpuId]) -> Vec<CpuId> {
    let rest: Vec<CpuId> = cpus.iter().filter(|cpu| !dedicated.contains(cpu)).copied().collect();
    if rest.is_empty() { cpus.to_vec() } else { rest }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::sync::mpsc;

    use super::*;

    /// A thread that does nothing, its number, and what ends it.
    fn idle(cpus: &[CpuId]) -> (u32, mpsc::Sender<()>) {
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let cpus = cpus.to_vec();
        std::thread::spawn(move || {
            affinity::allow(&cpus).unwrap();
            tell.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()).unwrap();
            let _ = ended.recv();
        });
        (told.recv().unwrap(), end)
    }

    /// A program that does nothing, ended with the test. What is let back is a thread and its whole
    /// process: among the threads of this one, other tests' would be.
    struct Idle(Child);

    impl Idle {
        fn start() -> Self {
            Self(Command::new("sleep").arg("600").spawn().unwrap())
        }
    }

    impl Drop for Idle {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    #[expect(clippy::print_stdout, reason = "says that it was skipped")]
    fn threads_come_back_to_where_they_might_run_before() {
        let all = affinity::allowed().unwrap();
        let [_, .., last] = all.as_slice() else {
            println!("SKIPPED: needs two CPUs, and this process may run on one");
            return;
        };
        let rest = &all[..all.len() - 1];
        let (everywhere, _first) = idle(&all);
        let (by_itself, _second) = idle(rest);
        let (there, _third) = idle(&[*last]);
        let threads = [everywhere, by_itself, there];
        let may = || threads.map(|thread| affinity::allowed_to(thread).unwrap());
        let before = may();
        let mut kept_off = KeptOff::new();
        kept_off.keep_off(&threads, &[*last], |_| false);
        assert_eq!(may(), [rest.to_vec(), rest.to_vec(), vec![*last]]);
        kept_off.keep_off(&threads, &[*last], |_| false);
        kept_off.keep_off(&threads, &[], |_| false);
        assert_eq!(may(), before);
        kept_off.keep_off(&threads, &[*last], |thread| thread == everywhere);
        assert_eq!(may(), before);
    }

    #[test]
    #[expect(clippy::print_stdout, reason = "says that it was skipped")]
    fn what_was_written_down_is_undone_where_it_still_holds() {
        let all = affinity::allowed().unwrap();
        let [first, .., last] = all.as_slice() else {
            println!("SKIPPED: needs two CPUs, and this process may run on one");
            return;
        };
        let root = Root::live();
        let (first_program, second_program) = (Idle::start(), Idle::start());
        let [kept, moved_since] = [&first_program, &second_program].map(|idle| idle.0.id());
        let threads = [kept, moved_since];
        let mut text = String::new();
        let mut kept_off = KeptOff::new();
        let note = |kept: &[Kept]| text = written(&root, kept);
        assert!(kept_off.keep_off_noted(&threads, &[*last], |_| false, note));
        // What was there is no more.
        drop(kept_off);
        affinity::allow_thread(Some(moved_since), &[*last]).unwrap();
        let (first, last) = (first.index(), last.index());
        let ended = format!("{kept} 1 {first} {first}-{last}\n");
        let to_fewer = text.replace(&format!("{first}-{last}"), &last.to_string());
        for wrong in ["", "1 2\n", "a b c d\n", &ended, &to_fewer, &text.replace(' ', "  ")] {
            assert_eq!(let_back(&root, wrong), 0, "{wrong}");
        }
        assert_eq!(text.lines().count(), 2, "{text}");
        assert_eq!(let_back(&root, &text), 1);
        assert_eq!(affinity::allowed_to(kept).unwrap(), all);
        assert_eq!(affinity::allowed_to(moved_since).unwrap(), [CpuId::new(last)]);
    }

    #[test]
    #[expect(clippy::print_stdout, reason = "says that it was skipped")]
    fn who_kept_off_one_core_by_itself_is_kept_off_others() {
        let all = affinity::allowed().unwrap();
        let [first, .., last] = all.as_slice() else {
            println!("SKIPPED: needs two CPUs, and this process may run on one");
            return;
        };
        // Without a CPU besides these, it cannot be kept off both.
        let rest = &all[..all.len() - 1];
        let (thread, _end) = idle(rest);
        let mut kept_off = KeptOff::new();
        kept_off.keep_off(&[thread], &[*last], |_| false);
        kept_off.keep_off(&[thread], &[*last, *first], |_| false);
        let kept = affinity::allowed_to(thread).unwrap();
        assert_eq!(kept, if rest.len() > 1 { &rest[1..] } else { rest });
        kept_off.keep_off(&[thread], &[], |_| false);
        assert_eq!(affinity::allowed_to(thread).unwrap(), rest);
    }
    #[test]
    #[expect(clippy::print_stdout, reason = "says that it was skipped")]
    fn who_chooses_cores_while_none_is_dedicated_keeps_to_them() {
        let all = affinity::allowed().unwrap();
        let [_, .., last] = all.as_slice() else {
            println!("SKIPPED: needs two CPUs, and this process may run on one");
            return;
        };
        let rest = &all[..all.len() - 1];
        let (thread, _end) = idle(&all);
        let mut kept_off = KeptOff::new();
        let mut keep_off = |threads: &[u32], dedicated: &[CpuId]| {
            let is_changed = kept_off.keep_off(threads, dedicated, |_| false);
            (is_changed, affinity::allowed_to(thread).unwrap())
        };
        assert_eq!(keep_off(&[thread], &[*last]), (true, rest.to_vec()));
        assert_eq!(keep_off(&[thread], &[*last]), (false, rest.to_vec()));
        // What was being started then is found the next time.
        let (missed, _end) = idle(rest);
        assert_eq!(keep_off(&[thread], &[]), (true, all.clone()));
        assert_eq!(keep_off(&[thread, missed], &[]), (true, all.clone()));
        assert_eq!(affinity::allowed_to(missed).unwrap(), all);
        assert_eq!(keep_off(&[thread, missed], &[]), (false, all.clone()));
        affinity::allow_thread(Some(thread), rest).unwrap();
        assert_eq!(keep_off(&[thread], &[*last]), (false, rest.to_vec()));
        assert_eq!(keep_off(&[thread], &[]), (false, rest.to_vec()));
    }

    #[test]
    #[expect(clippy::print_stdout, reason = "says that it was skipped")]
    fn threads_that_differ_in_dedicated_cores_alone_are_told_apart() {
        let all = affinity::allowed().unwrap();
        let [_, .., next, last] = all.as_slice() else {
            println!("SKIPPED: needs three CPUs");
            return;
        };
        let (everywhere, _first) = idle(&all);
        let (by_itself, _second) = idle(&all[..all.len() - 1]);
        let may = || [everywhere, by_itself].map(|thread| affinity::allowed_to(thread).unwrap());
        let before = may();
        for threads in [[everywhere, by_itself], [by_itself, everywhere]] {
            let mut kept_off = KeptOff::new();
            kept_off.keep_off(&threads, &[*next, *last], |_| false);
            kept_off.keep_off(&threads, &[], |_| false);
            assert_eq!(may(), before);
        }
    }
}
