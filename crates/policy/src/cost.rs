//! What a call of wide-vector code costs the code after it, by a processor's model.
//!
//! After the call the level is held for a while, with the clock down, and given back with a stall; the next
//! call asks for it anew and is throttled meanwhile. That is an *episode*. Where calls recur at gaps that
//! are short enough, the level is *kept*: no stall and no throttling, but all code in between runs at the
//! lower clock. (Paper 000 §3.3.4 for the hold; the second regime as `dimmer probe --mode recurrence`
//! measures it.)

use dimmer_processor::model::{Missing, Model};
use dimmer_processor::units::LicenceLevel;

/// What the model must say, in words for [`Missing`].
const NEEDED_FOR: &str = "what a call costs the code after it";

/// What calls at one level cost on a processor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallCost {
    /// The part of its time that code loses while the level is held: one less the ratio of the clocks.
    pub slower: f64,
    /// How long the level is held after a call (ns).
    pub hold_ns: f64,
    /// The stall when it is given back (ns).
    pub stall_ns: f64,
    /// The time lost to throttling when it is asked for anew (ns).
    pub throttled_ns: f64,
    /// Below this gap between calls the level is kept (ns).
    pub recurrence_ns: f64,
}

/// Time lost between the end of a call and the begin of the next.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lost {
    /// In gaps that the level was kept through (ns).
    pub kept_ns: f64,
    /// In episodes (ns).
    pub episodes_ns: f64,
}

impl CallCost {
    /// What calls that ask for `level` cost, with one core active; nothing at L0.
    ///
    /// A stall, a throttled time or a recurrence that the model does not know counts as none: then the
    /// cost is at least as high as told.
    ///
    /// # Errors
    /// If the model does not know the level's clock, or how long it is held.
    pub fn new(model: &Model, level: LicenceLevel) -> Result<Self, Missing> {
        if level == LicenceLevel::new(0) {
            return Ok(Self {
                slower: 0.0,
                hold_ns: 0.0,
                stall_ns: 0.0,
                throttled_ns: 0.0,
                recurrence_ns: 0.0,
            });
        }
        let time = |value: &u64| *value as f64;
        let (request, release) = (&model.request, &model.release);
        let hold = model.require(release.hold_ns.as_ref(), "release.hold_ns", NEEDED_FOR)?;
        let optional = |value: Option<u64>| value.map_or(0.0, |value| time(&value));
        let factor = request.throttle_factor.as_ref().map_or(1.0, |factor| factor.value);
        let throttled = optional(request.throttled_ns.as_ref().map(|ns| ns.value));
        Ok(Self {
            slower: 1.0 - model.clock_ratio(level, NEEDED_FOR)?.min(1.0),
            hold_ns: time(hold),
            stall_ns: optional(release.stall_ns.as_ref().map(|ns| ns.value)),
            throttled_ns: throttled * (1.0 - factor.clamp(0.0, 1.0)),
            recurrence_ns: optional(release.recurrence_ns.as_ref().map(|ns| ns.value)),
        })
    }

    /// The time lost in a gap of this length after a call (ns).
    #[must_use]
    pub fn in_gap(&self, gap_ns: f64) -> Lost {
        if self.slower <= 0.0 {
            return Lost::default();
        }
        if gap_ns < self.recurrence_ns.max(self.hold_ns) {
            return Lost { kept_ns: gap_ns * self.slower, episodes_ns: 0.0 };
        }
        let episode = self.hold_ns * self.slower + self.stall_ns + self.throttled_ns;
        Lost { kept_ns: 0.0, episodes_ns: episode }
    }

    /// The time lost over many gaps, given as lengths (ns) and how many there are.
    pub fn in_gaps(&self, gaps: impl IntoIterator<Item = (f64, f64)>) -> Lost {
        let mut sum = Lost::default();
        for (gap_ns, number) in gaps {
            let one = self.in_gap(gap_ns);
            sum.kept_ns += number * one.kept_ns;
            sum.episodes_ns += number * one.episodes_ns;
        }
        sum
    }
}

impl Lost {
    /// Both together (ns).
    #[must_use]
    pub fn total_ns(&self) -> f64 {
        self.kept_ns + self.episodes_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The Xeon 6 kind: hold 2.5 us at 6 % less, stall 1.4 us, kept below 240 us.
    const XEON_6: CallCost = CallCost {
        slower: 0.06,
        hold_ns: 2500.0,
        stall_ns: 1400.0,
        throttled_ns: 1200.0,
        recurrence_ns: 240_000.0,
    };

    #[test]
    fn calls_that_recur_slow_all_code_in_between() {
        // One call every 200 us: 6 % of it all.
        let lost = XEON_6.in_gaps([(200_000.0, 5000.0)]);
        assert!((lost.total_ns() / 1e9 - 0.06).abs() < 1e-12, "{lost:?}");
        assert_eq!(lost.episodes_ns, 0.0);
    }

    #[test]
    fn calls_apart_cost_an_episode_each() {
        // One every 400 us: 2750 ns each, 0.7 %.
        let lost = XEON_6.in_gaps([(400_000.0, 2500.0)]);
        assert!((lost.total_ns() - 2500.0 * 2750.0).abs() < 1e-3, "{lost:?}");
    }

    #[test]
    fn without_a_known_recurrence_gaps_within_the_hold_are_kept() {
        let skylake = CallCost { recurrence_ns: 0.0, hold_ns: 670_000.0, ..XEON_6 };
        assert!(skylake.in_gap(600_000.0).kept_ns > 0.0);
        assert!(skylake.in_gap(700_000.0).episodes_ns > 0.0);
    }

    #[test]
    fn models_that_come_with_the_project_give_costs_or_say_what_is_missing() {
        for (name, text) in dimmer_processor::model::BUILTIN {
            let model = Model::parse(std::path::Path::new(name), text).unwrap();
            for index in 0..model.levels.len() {
                let level = LicenceLevel::new(u32::try_from(index).unwrap());
                match CallCost::new(&model, level) {
                    Ok(cost) => assert!((0.0..1.0).contains(&cost.slower), "{name} {cost:?}"),
                    Err(missing) => assert!(missing.to_string().contains("costs"), "{missing}"),
                }
            }
        }
    }
}
