//! Exclusion by affinity, thread by thread, which is restored also for a process that was killed
//! before it could do so itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use dimmer_processor::units::CpuId;

use super::{Change, Exclusion, ExclusionError};
use crate::root::{Root, format_cpu_list, parse_cpu_list};
use crate::{affinity, process};

/// Keeps off one thread after the other, except some. Dropping it lets none back:
/// [`let_back`] does, by what was noted.
pub struct ByAffinity {
    root: Root,
    kept_off: KeptOff,
    is_spared: fn(&Root, u32) -> bool,
    note: Box<dyn FnMut(&str)>,
}

impl fmt::Debug for ByAffinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByAffinity").field("kept_off", &self.kept_off).finish_non_exhaustive()
    }
}

impl ByAffinity {
    /// `is_spared`: whether a thread may stay, asked only for threads whose affinity would change.
    /// `note`: takes the threads that are about to be kept off as [`written`], so that others can
    /// let them back if this process is killed; an empty text once none is.
    #[must_use]
    pub fn new(root: &Root, is_spared: fn(&Root, u32) -> bool, note: Box<dyn FnMut(&str)>) -> Self {
        Self { root: root.clone(), kept_off: KeptOff::new(), is_spared, note }
    }

    /// Whether a thread that may run on the CPUs `now` has the affinity that the last call of
    /// [`Exclusion::keep_off`] has left it.
    #[must_use]
    pub fn is_as_left(&self, thread: u32, now: &[CpuId]) -> bool {
        let KeptOff { known, dedicated, .. } = &self.kept_off;
        known.get(&thread).is_some_and(|before| without(before, dedicated) == now)
    }
}

impl Exclusion for ByAffinity {
    fn keep_off(&mut self, cpus: &[CpuId], threads: &[u32]) -> Result<Change, ExclusionError> {
        let Self { root, kept_off, is_spared, note } = self;
        let write = |kept: &[Kept]| {
            if !kept.is_empty() {
                note(&written(root, kept));
            }
        };
        let is_spared = |thread| is_spared(root, thread);
        let is_changed = kept_off.keep_off_noted(threads, cpus, is_spared, write);
        if cpus.is_empty() {
            note("");
        }
        Ok(Change { is_changed, ..Change::default() })
    }
}

/// Threads that are kept off cores, and their earlier affinity. Dropping it undoes nothing: to
/// undo, call [`Self::keep_off`] with no dedicated cores.
#[derive(Debug, Default)]
pub struct KeptOff {
    /// The cores that the threads are kept off.
    dedicated: Vec<CpuId>,
    /// Each known thread's affinity before.
    known: BTreeMap<u32, Vec<CpuId>>,
    /// Earlier affinity by present affinity, for threads that were started meanwhile.
    before: BTreeMap<Vec<CpuId>, Vec<CpuId>>,
}

/// A thread that is kept off cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    thread: u32,
    /// The thread's present affinity.
    now: Vec<CpuId>,
    /// The thread's affinity before.
    before: Vec<CpuId>,
}

impl KeptOff {
    /// A state without kept-off threads.
    #[must_use]
    pub const fn new() -> Self {
        Self { dedicated: Vec::new(), known: BTreeMap::new(), before: BTreeMap::new() }
    }

    /// Keeps these threads off the `dedicated` cores, including the threads and programs that they
    /// start, and lets them use cores again that are no longer in `dedicated`. `threads` is the
    /// complete list: others are forgotten.
    ///
    /// Some threads differ. A thread that may run only on dedicated cores stays. A thread that
    /// chose other cores by itself keeps its choice. A thread that this process may not change is
    /// left alone, as is a thread for which `is_spared` returns true. `is_spared` is called only
    /// for threads whose affinity would change.
    ///
    /// Returns whether any affinity changed. A thread that was just being started may have been
    /// missed; the next call finds it.
    ///
    /// # Cost
    /// One or two system calls per thread.
    pub fn keep_off(
        &mut self,
        threads: &[u32],
        dedicated: &[CpuId],
        is_spared: impl Fn(u32) -> bool,
    ) -> bool {
        self.keep_off_noted(threads, dedicated, is_spared, |_| ())
    }

    /// As [`Self::keep_off`], but first passes all threads to be kept off to `note`, for
    /// [`let_back`].
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
            // A thread may have ended meanwhile; that is no error.
            let Ok(now) = affinity::allowed_to(thread) else { continue };
            let before = match known.get(&thread) {
                Some(before) if without(before, &earlier) == now => before,
                // The thread's affinity was changed by others since.
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
        // Only now: a thread that had one of these affinities of its own accord was not kept off.
        self.before.extend(kept.into_iter().map(|kept| (kept.now, kept.before)));
        if dedicated.is_empty() && !is_changed {
            // No thread is kept off any more. A thread that has one of these affinities later chose
            // it.
            self.before.clear();
        }
        is_changed
    }
}

/// The kept-off threads as text, one line each: thread id, start time, present affinity, earlier
/// affinity.
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

/// Restores the affinity of the threads that such a text lists, and of the threads and processes
/// that they started, if their affinity still is the noted one. Returns the number restored. Skips
/// malformed lines.
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

/// Parses a line: a kept-off thread and its start time.
fn read(line: &str) -> Option<(Kept, u64)> {
    let mut words = line.split(' ');
    let thread = words.next()?.parse().ok()?;
    let began = words.next()?.parse().ok()?;
    let now = parse_cpu_list(words.next()?)?;
    let before = parse_cpu_list(words.next()?)?;
    // The earlier affinity must include the present one.
    let is_whole = words.next().is_none() && now.iter().all(|cpu| before.contains(cpu));
    is_whole.then_some((Kept { thread, now, before }, began))
}

/// The CPUs that are not dedicated; all of them if every one is dedicated.
fn without(cpus: &[CpuId], dedicated: &[CpuId]) -> Vec<CpuId> {
    let rest: Vec<CpuId> = cpus.iter().filter(|cpu| !dedicated.contains(cpu)).copied().collect();
    if rest.is_empty() { cpus.to_vec() } else { rest }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::sync::mpsc;

    use super::*;

    /// Starts an idle thread; returns its id and a sender whose drop ends it.
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

    /// An idle program that ends with the test. [`let_back`] restores a thread and its whole
    /// process: in this process, it would include other tests' threads.
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
        // The earlier state is gone.
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
        // With no CPU besides these, the thread cannot be kept off both.
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
        // A thread that was being started then is found by the next call.
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
