//! From which length on a faster clock for a lock's holder pays: by a processor model, or by what
//! requests cost on this machine.

use dimmer_host::cpufreq::clocks::Clocks;
use dimmer_host::cpufreq::{POLICIES, policies};
use dimmer_host::root::Root;
use dimmer_policy::boost::site::Gain;
use dimmer_policy::break_even::{Boost, Boosts, Costs, Lacks, Verdict};
use dimmer_processor::model::Model;
use dimmer_processor::units::{Nanos, Picos};

/// By what a site's verdicts come about.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// The processor's name; `None` for this machine.
    pub model: Option<String>,
    /// Its boosts: the owner's and one step by a model, that of the section alone on this machine.
    pub boosts: Vec<BreakEven>,
}

/// A boost, and from which length of a hold on it pays if memory stalls none of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BreakEven {
    /// `owner` or `one-step`, as `dimmer sim predict-lock` has them, or `one`.
    pub name: &'static str,
    /// The shortest hold at the base clock that gains; `None` if none does.
    pub shortest: Option<Picos>,
    /// The shortest wait before it that hides the request for the slow clock.
    pub least_wait: Picos,
    boost: Boost,
    /// How long the section goes on at the base clock before the request for the faster one begins.
    delay: Picos,
}

impl BreakEven {
    fn new(name: &'static str, boost: Boost, delay: Picos) -> Self {
        let shortest = boost.shortest(0.0).map(|shortest| shortest + delay);
        Self { name, shortest, least_wait: boost.least_wait(), boost, delay }
    }
}

impl BreakEven {
    fn verdict(&self, held: Picos, waited: Picos, stalled: f64) -> Verdict {
        self.boost.verdict(held - self.delay, waited, stalled)
    }
}

impl Advice {
    /// The boosts of a processor.
    ///
    /// # Errors
    /// [`Lacks`]: the model has no costs of changes between P-states.
    pub fn new(model: &Model) -> Result<Self, Lacks> {
        let Boosts { owner, one_step, .. } = Boosts::new(model)?;
        let boosts = [("owner", owner), ("one-step", one_step)];
        let boosts = boosts.map(|(name, boost)| BreakEven::new(name, boost, Picos::ZERO)).to_vec();
        Ok(Self { model: Some(model.identity.name.clone()), boosts })
    }

    /// The boost of a section from the base clock to the fastest one here. `took` and `delay` are
    /// how long a request takes its thread, and how long it is until it is carried out. The section
    /// executes at the base clock meanwhile. From then on the kernel's word counts for how long the
    /// clock takes to change.
    ///
    /// `None` if the kernel reports no base clock, or not how long a change takes.
    pub(crate) fn of_machine(root: &Root, [took, delay]: [Nanos; 2]) -> Option<Self> {
        // CPUs that differ have policies of their own: that of the first CPU stands for all.
        let policy = policies(root).into_iter().next()?;
        let Clocks { base, fastest, .. } = Clocks::of(root, &policy)?;
        let path = format!("{POLICIES}/{}/cpuinfo_transition_latency", policy.name);
        // CPUFREQ_ETERNAL, the greatest of 32 bits, stands for one that is not known (Linux,
        // `include/linux/cpufreq.h`).
        let change = u64::try_from(root.integer(&path).ok()?).ok()?;
        let change = (change < u64::from(u32::MAX)).then_some(change)?;
        let (request, ramp) = (took.picos(), Nanos::from_ns(change).picos());
        let costs = Costs { request, ramp, back: request, down: Picos::ZERO };
        let boost = Boost::new(base?, base?, fastest, costs).ok()?;
        let delay = Nanos::from_ns(delay.ns().saturating_sub(took.ns())).picos();
        Some(Self { model: None, boosts: vec![BreakEven::new("one", boost, delay)] })
    }

    /// What a section gains if only it is boosted.
    pub(crate) fn gain(&self) -> Option<Gain> {
        let one = self.boosts.last()?;
        Some(Gain { shortest: one.shortest, speedup: one.boost.speedup() })
    }

    /// Whether each boost pays for holds of this length after waits of that length. `stalled`: the
    /// part of the holds in which memory stalls them ([`Boost::shortest`]).
    pub(crate) fn verdicts(&self, held: Picos, waited: Picos, stalled: f64) -> Vec<Verdict> {
        self.boosts.iter().map(|one| one.verdict(held, waited, stalled)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let directory = tempfile::tempdir().unwrap();
        let policy = directory.path().join(&format!("{POLICIES}/policy0")[1..]);
        std::fs::create_dir_all(&policy).unwrap();
        for (name, content) in files {
            std::fs::write(policy.join(name), content).unwrap();
        }
        let root = Root::new(directory.path());
        (directory, root)
    }

    /// From 3 to 4 GHz: four times both requests, and half of the ramp, after the delay.
    #[test]
    fn the_break_even_here_follows_from_what_requests_cost() {
        const FILES: [(&str, &str); 5] = [
            ("affected_cpus", "0 1"),
            ("base_frequency", "3000000"),
            ("cpuinfo_max_freq", "4000000"),
            ("cpuinfo_min_freq", "800000"),
            ("cpuinfo_transition_latency", "4000"),
        ];
        let costs = [1000, 51_000].map(Nanos::from_ns);
        let (_directory, root) = machine(&FILES);
        let advice = Advice::of_machine(&root, costs).unwrap();
        let shortest = Nanos::from_ns(50_000 + 2 * 4000 + 2000).picos();
        let gain = Gain { shortest: Some(shortest), speedup: 4.0 / 3.0 };
        assert_eq!(advice.gain(), Some(gain));
        let verdicts = |held, stalled| advice.verdicts(held, Picos::ZERO, stalled);
        assert_eq!(verdicts(shortest, 0.0), [Verdict::Pays]);
        let shorter = shortest - Nanos::from_ns(1).picos();
        assert_eq!(verdicts(shorter, 0.0), [Verdict::ShortSection]);
        // Half of it stalled, the boost gains half as much at most.
        assert_eq!(verdicts(shortest, 0.5), [Verdict::ShortSection]);
        assert_eq!(verdicts(shortest + shortest + shortest, 0.5), [Verdict::Pays]);
        assert_eq!(verdicts(Nanos::from_us(1_000_000).picos(), 1.0), [Verdict::ShortSection]);
        for missing in ["base_frequency", "cpuinfo_transition_latency", "cpuinfo_max_freq"] {
            let left: Vec<_> = FILES.into_iter().filter(|(name, _)| *name != missing).collect();
            assert_eq!(Advice::of_machine(&machine(&left).1, costs), None, "{missing}");
        }
        let unknown = [&FILES[..4], &[("cpuinfo_transition_latency", "4294967295")]].concat();
        assert_eq!(Advice::of_machine(&machine(&unknown).1, costs), None);
        assert_eq!(Advice::of_machine(&machine(&[]).1, costs), None);
    }
}
