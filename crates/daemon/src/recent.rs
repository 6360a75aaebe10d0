//! Averages of the last seconds, for display. One look covers a twentieth of a second, in which a
//! region may be sampled once or twice: a sample that was preempted would then stand for thousands
//! of calls. So the weight of a look halves with each second that passes.

/// Time after which the weight of a look halves (ns).
const HALF_LIFE_NS: f64 = 1e9;

/// Sums over time in which older looks have less weight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Recent {
    span_ns: f64,
    /// Calls of a region, or units of work of a program.
    number: f64,
    moved: f64,
    moved_ns: f64,
    sampled: f64,
    sampled_ns: f64,
}

/// What a look has seen of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Calls {
    /// All calls.
    pub number: u64,
    /// Those of them that were moved, and their total duration (ns).
    pub moved: (u64, f64),
    /// Those of the calls that stayed that were sampled, and their total duration (ns).
    pub sampled: (u64, f64),
}

impl Recent {
    /// Adds the calls seen in the last `span_ns`.
    pub fn add(&mut self, span_ns: u64, calls: &Calls) {
        let span_ns = span_ns as f64;
        let part = (-span_ns / HALF_LIFE_NS).exp2();
        let add = |sum: &mut f64, more: f64| *sum = *sum * part + more;
        add(&mut self.span_ns, span_ns);
        add(&mut self.number, calls.number as f64);
        add(&mut self.moved, calls.moved.0 as f64);
        add(&mut self.moved_ns, calls.moved.1);
        add(&mut self.sampled, calls.sampled.0 as f64);
        add(&mut self.sampled_ns, calls.sampled.1);
    }

    /// Calls per second.
    #[must_use]
    pub fn per_s(&self) -> f64 {
        if self.span_ns > 0.0 { self.number * 1e9 / self.span_ns } else { 0.0 }
    }

    /// The mean duration of a call that stayed (ns), if any was sampled.
    #[must_use]
    pub fn stayed_ns(&self) -> Option<f64> {
        mean(self.sampled_ns, self.sampled)
    }

    /// The mean duration of a call that was moved (ns), if there were any.
    #[must_use]
    pub fn moved_ns(&self) -> Option<f64> {
        mean(self.moved_ns, self.moved)
    }

    /// The share of one CPU's time spent in the region.
    #[must_use]
    pub fn share(&self) -> f64 {
        let stayed_ns = self.stayed_ns().unwrap_or(0.0) * (self.number - self.moved).max(0.0);
        if self.span_ns > 0.0 { (stayed_ns + self.moved_ns) / self.span_ns } else { 0.0 }
    }
}

/// The mean; `None` if nothing was seen, or so long ago that its weight has vanished.
fn mean(sum: f64, number: f64) -> Option<f64> {
    /// The weight after five minutes and a half.
    const LEAST: f64 = 1e-100;
    (number > LEAST).then(|| sum / number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK_NS: u64 = 50_000_000;

    /// A region of 20 us that is entered 10 000 times per second; one call of 250 is sampled.
    const STEADY: Calls = Calls { number: 500, moved: (0, 0.0), sampled: (2, 40_000.0) };

    fn after(looks: u32, calls: &Calls) -> Recent {
        let mut recent = Recent::default();
        (0..looks).for_each(|_| recent.add(LOOK_NS, calls));
        recent
    }

    #[test]
    fn what_is_steady_is_told_as_it_is() {
        for looks in [1, 20, 1000] {
            let recent = after(looks, &STEADY);
            assert!((recent.per_s() - 10_000.0).abs() < 1e-6, "{recent:?}");
            assert!((recent.share() - 0.2).abs() < 1e-9, "{recent:?}");
            assert!((recent.stayed_ns().unwrap() - 20_000.0).abs() < 1e-6, "{recent:?}");
            assert_eq!(recent.moved_ns(), None);
        }
    }

    #[test]
    fn one_sample_that_was_pre_empted_does_not_stand_for_all() {
        let mut recent = after(200, &STEADY);
        recent.add(LOOK_NS, &Calls { sampled: (2, 4_040_000.0), ..STEADY });
        // By this look alone, the region would take twenty times a CPU's time.
        assert!(recent.share() < 1.0, "{recent:?}");
    }

    #[test]
    fn what_has_ended_is_known_for_a_while() {
        let mut recent = after(100, &Calls { moved: (500, 2e7), ..STEADY });
        assert!(recent.share() > 0.3 && recent.moved_ns() == Some(40_000.0), "{recent:?}");
        (0..500).for_each(|_| recent.add(LOOK_NS, &Calls::default()));
        let told = recent;
        assert!(told.per_s() < 0.01 && told.share() < 1e-6, "{told:?}");
        assert!((told.moved_ns().unwrap() - 40_000.0).abs() < 1e-6, "{told:?}");
        (0..10_000).for_each(|_| recent.add(LOOK_NS, &Calls::default()));
        assert_eq!((recent.stayed_ns(), recent.moved_ns()), (None, None));
    }

    #[test]
    fn nothing_is_nothing() {
        let recent = Recent::default();
        assert_eq!((recent.per_s(), recent.share()), (0.0, 0.0));
        assert_eq!((recent.stayed_ns(), recent.moved_ns()), (None, None));
    }
}
