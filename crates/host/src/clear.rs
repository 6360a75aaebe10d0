//! Keeping threads off dedicated cores by affinity, and letting them back.

use std::collections::{BTreeMap, BTreeSet};

use dimmer_processor::units::CpuId;

use crate::affinity;

/// Threads that are kept off cores, and where they might run before. Nothing is undone when it is dropped: who wants that
/// dedicates no core at the end.
#[derive(Debug, Default)]
pub struct KeptOff {
    /// Where threads might run before, by where they may since: also of those that have been started meanwhile.
    before: BTreeMap<Vec<CpuId>, Vec<CpuId>>,
    /// Threads that kept off by themselves: nothing is to be undone for them.
    untouched: BTreeSet<u32>,
}

impl KeptOff {
    /// None so far.
    #[must_use]
    pub const fn new() -> Self {
        Self { before: BTreeMap::new(), untouched: BTreeSet::new() }
    }

    /// Keeps these threads off the cores, and with them those that they start, threads and programs; and lets them on those
    /// again that they were kept off before and that are not among these. A thread that may run nowhere else stays, and one that this process may
    /// not change; so does whom `is_spared` names, which is asked about those alone that would be kept off or let back. `threads` are all that there are: of others it is forgotten that they kept off by themselves.
    ///
    /// # Cost
    /// One or two system calls a thread.
    pub fn keep_off(
        &mut self,
        threads: &[u32],
        dedicated: &[CpuId],
        is_spared: impl Fn(u32) -> bool,
    ) {
        self.untouched.retain(|thread| threads.contains(thread));
        let mut moved = Vec::new();
        for thread in threads.iter().copied() {
            let now = affinity::allowed_to(thread).unwrap_or_default();
            let was_kept_off = !self.untouched.contains(&thread);
            let before = self.before.get(&now).filter(|_| was_kept_off).unwrap_or(&now).clone();
            let mut cpus = before.clone();
            cpus.retain(|cpu| !dedicated.contains(cpu));
            if cpus == now && before == now && !dedicated.is_empty() {
                self.untouched.insert(thread);
            } else if !cpus.is_empty() && cpus != now && !is_spared(thread) {
                // A thread that has ended meanwhile is no error.
                let _ = affinity::allow_thread(Some(thread), &cpus);
                self.untouched.remove(&thread);
                moved.push((cpus, before));
            }
        }
        // Only now: who has come upon these by itself was not kept off.
        self.before.extend(moved);
    }
}

#[cfg(test)]
mod tests {
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
}
