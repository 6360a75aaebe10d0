//! Where a thread may run while it is wide, without a scheduler that knows classes: its affinity is
//! all that can be changed. This decides which affinity, so that what the thread's owner wants
//! still holds (corner case 2 of paper 003, §3.2).

/// The most CPUs that a set holds: as many as the C library's `cpu_set_t` has.
const MOST_CPUS: usize = 1024;

const WORDS: usize = MOST_CPUS / 64;

/// A set of CPUs, in the kernel's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Cpus([u64; WORDS]);

impl Cpus {
    /// No CPU.
    pub const NONE: Self = Self([0; WORDS]);

    /// These CPUs; numbers from 1024 on are left out.
    #[must_use]
    pub fn of(numbers: impl IntoIterator<Item = usize>) -> Self {
        let mut cpus = Self::NONE;
        for number in numbers {
            if let Some(word) = cpus.0.get_mut(number / 64) {
                *word |= 1 << (number % 64);
            }
        }
        cpus
    }

    /// Their numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..MOST_CPUS).filter(|number| self.0[number / 64] & 1 << (number % 64) != 0)
    }

    /// Those that both have.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|index| self.0[index] & other.0[index]))
    }

    /// Those that `other` has not.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|index| self.0[index] & !other.0[index]))
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::NONE
    }
}

/// The CPUs of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Those that it was started with.
    pub all: Cpus,
    /// The sets of them that may be wide, one of them at a time.
    pub sets: Vec<Cpus>,
}

/// Where a thread's affinity comes from, if it is just that of all CPUs that are not in a set: that
/// is what Dimmer gives the threads that it keeps off wide CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affinity {
    /// From Dimmer, as far as known.
    Given,
    /// From the program, or perhaps: the thread may be one that another has pinned, or was started
    /// by one that is.
    Chosen,
}

/// Where a thread goes that is about to execute wide code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goes {
    /// Where it may run from now on: the wide CPUs among its own.
    pub wide: Cpus,
    /// Where its owner lets it run.
    pub own: Cpus,
}

/// Why a thread stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Stays {
    /// Its affinity has no wide CPU.
    Pinned,
    /// The kernel refused to change its affinity.
    Refused,
    /// There are more threads at once than are kept in mind.
    TooMany,
}

impl Stays {
    /// All reasons.
    pub const ALL: [Self; 3] = [Self::Pinned, Self::Refused, Self::TooMany];

    /// A bit for each, as threads note them.
    #[must_use]
    pub const fn bit(self) -> u32 {
        1 << self as u32
    }
}

impl Domain {
    /// Whether these are all CPUs but those of a set. Threads that were kept off one set may not
    /// have the affinity for the next one yet.
    #[must_use]
    pub fn is_narrow(&self, cpus: &Cpus) -> bool {
        self.sets.iter().any(|set| *cpus == self.all.without(set))
    }

    /// Whether `now` may be what a thread whose own CPUs are `own` has while it is kept off a set.
    #[must_use]
    pub fn is_kept_off(&self, own: &Cpus, now: &Cpus) -> bool {
        *own == self.all && self.is_narrow(now)
    }

    /// Where a thread goes that may run on `now`, while the set `wide` is wide; `None`: it is
    /// there, as it may run on wide CPUs alone.
    ///
    /// # Errors
    /// Why it stays.
    pub fn place(
        &self,
        wide: &Cpus,
        now: &Cpus,
        affinity: Affinity,
    ) -> Result<Option<Goes>, Stays> {
        if !now.is_empty() && now.without(wide).is_empty() {
            return Ok(None);
        }
        let is_kept_off = affinity == Affinity::Given && self.is_narrow(now);
        let own = if is_kept_off { self.all } else { *now };
        let wide = own.and(wide);
        if wide.is_empty() { Err(Stays::Pinned) } else { Ok(Some(Goes { wide, own })) }
    }

    /// What a thread gets back at the end of its phase. `kept_off`: the set that the program's
    /// threads are kept off now, if any. A thread that has chosen some CPUs gets just these.
    #[must_use]
    pub fn back(&self, own: &Cpus, kept_off: Option<&Cpus>) -> Cpus {
        let kept_off = kept_off.filter(|_| *own == self.all);
        kept_off.map_or(*own, |wide| self.all.without(wide))
    }

    /// Whether a process was given its affinity by its user: it began with `now`, and who started
    /// it may run on `parents`. Threads that are kept off wide CPUs start threads that are, too.
    #[must_use]
    pub fn is_pinned_at_start(&self, now: &Cpus, parents: &Cpus) -> bool {
        let has_all_of_it = now.without(parents).is_empty();
        self.is_narrow(now) && has_all_of_it && !self.is_narrow(parents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(numbers: &[usize]) -> Cpus {
        Cpus::of(numbers.iter().copied())
    }

    fn eight() -> Domain {
        Domain { all: Cpus::of(0..8), sets: vec![cpus(&[6, 7]), cpus(&[7])] }
    }

    /// All but the two CPUs of the first set.
    fn narrow() -> Cpus {
        Cpus::of(0..6)
    }

    #[test]
    fn sets_hold_what_they_were_given() {
        let set = cpus(&[0, 63, 64, 1023, 1024, 5000]);
        assert!(set.iter().eq([0, 63, 64, 1023]));
        assert_eq!(set.and(&cpus(&[63, 64])), cpus(&[63, 64]));
        assert_eq!(set.without(&cpus(&[63, 64])), cpus(&[0, 1023]));
        assert!(cpus(&[]).is_empty() && !set.is_empty());
    }

    #[test]
    fn a_thread_goes_to_the_wide_cpus_of_its_own() {
        let at = |now: &[usize]| eight().place(&cpus(&[6, 7]), &cpus(now), Affinity::Given);
        let goes = |wide: &[usize], own: &[usize]| {
            let (wide, own) = (cpus(wide), cpus(own));
            Ok(Some(Goes { wide, own }))
        };
        let all: Vec<usize> = (0..8).collect();
        assert_eq!(at(&all), goes(&[6, 7], &all));
        // Dimmer keeps it off the wide ones, or off those that were wide before.
        assert_eq!(at(&[0, 1, 2, 3, 4, 5]), goes(&[6, 7], &all));
        assert_eq!(at(&[0, 1, 2, 3, 4, 5, 6]), goes(&[6, 7], &all));
        assert_eq!(at(&[3, 7]), goes(&[7], &[3, 7]));
        assert_eq!((at(&[6, 7]), at(&[7])), (Ok(None), Ok(None)));
    }

    #[test]
    fn a_thread_that_was_pinned_to_narrow_cpus_stays() {
        let stays = Err(Stays::Pinned);
        let at = |now: &Cpus, affinity| eight().place(&cpus(&[6, 7]), now, affinity);
        assert_eq!(at(&cpus(&[2]), Affinity::Given), stays);
        assert_eq!(at(&narrow(), Affinity::Chosen), stays);
        assert_ne!(at(&narrow(), Affinity::Given), stays);
        // It may run anywhere, whether Dimmer or the program has decided that.
        assert_ne!(at(&eight().all, Affinity::Chosen), stays);
    }

    #[test]
    fn a_thread_gets_back_what_it_had_or_what_the_others_have() {
        let all = eight().all;
        let wide = cpus(&[6, 7]);
        assert_eq!(eight().back(&all, Some(&wide)), narrow());
        assert_eq!(eight().back(&all, None), all);
        for kept_off in [Some(&wide), None] {
            assert_eq!(eight().back(&cpus(&[3, 7]), kept_off), cpus(&[3, 7]));
        }
    }

    #[test]
    fn a_thread_that_may_run_anywhere_may_be_kept_off_any_set() {
        let is = |own: &Cpus, now: &Cpus| eight().is_kept_off(own, now);
        let all = eight().all;
        assert!(is(&all, &narrow()) && is(&all, &Cpus::of(0..7)));
        assert!(!is(&all, &cpus(&[2])) && !is(&all, &all) && !is(&narrow(), &narrow()));
    }

    #[test]
    fn a_process_is_pinned_if_who_started_it_is_not() {
        let is = |now: &Cpus, parents: &Cpus| eight().is_pinned_at_start(now, parents);
        let all = eight().all;
        assert!(is(&narrow(), &all));
        assert!(!is(&narrow(), &narrow()) && !is(&all, &all));
        // Who started it is wide itself now, or was kept off another set by then.
        assert!(!is(&narrow(), &cpus(&[6, 7])) && !is(&narrow(), &Cpus::of(0..7)));
    }
}
