//! Whether a faster clock for the calls of functions pays. `docs/observe-json.md` describes the
//! document.

use dimmer_policy::break_even::Boosts;
use dimmer_processor::model::Model;
use dimmer_processor::units::Picos;
use serde::Serialize;

use crate::number::{counted, time};

/// From which length on a call gains by a faster clock, requested at its start and withdrawn at its
/// end: paper 002's one step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Boost {
    /// The P-state of the base clock.
    from: String,
    /// The one that is requested.
    to: String,
    /// The shortest call that gains, if memory stalls none of it; `null` if none does.
    shortest_ns: Option<f64>,
    /// The number of functions whose mean call is that long.
    pays_for: usize,
    /// The number of functions whose calls were timed.
    of: usize,
}

impl Boost {
    /// By a model, for functions whose calls take these times (ns) in the mean. `None` if the model
    /// lacks what requests of clocks cost, or there are no such functions.
    pub(super) fn new(model: &Model, means: impl Iterator<Item = f64>) -> Option<Self> {
        let boosts = Boosts::new(model).ok()?;
        let shortest = boosts.one_step.shortest(0.0).map(Picos::ns);
        let (mut pays_for, mut of) = (0, 0);
        for mean in means {
            of += 1;
            pays_for += usize::from(shortest.is_some_and(|shortest| mean >= shortest));
        }
        let [from, to] = [boosts.base, boosts.step].map(|state| state.name.clone());
        (of > 0).then_some(Self { from, to, shortest_ns: shortest, pays_for, of })
    }

    pub(super) fn sentence(&self) -> String {
        let Self { from, to, shortest_ns, pays_for, of } = self;
        let faster = format!("A faster clock for a call, {to} instead of {from},");
        let Some(shortest) = shortest_ns else { return format!("{faster} gains for none.") };
        format!(
            "{faster} gains from {} on, if memory stalls none of it. By the mean, the calls of {} of {} are \
             that long.",
            time(*shortest),
            pays_for,
            counted(*of, "function"),
        )
    }
}

#[cfg(test)]
mod tests {
    use dimmer_processor::model::builtin;

    use super::*;

    fn model(name: &str) -> Model {
        Model::parse(std::path::Path::new(name), builtin(name).unwrap()).unwrap()
    }

    /// 336 072 cycles of the time-stamp counter, of 4 GHz, are 84 018 ns (paper 002, section 4.4).
    #[test]
    fn calls_that_are_as_long_as_one_step_needs_gain() {
        let fx = model("fx-8120");
        let boost = Boost::new(&fx, [83_000.0, 85_000.0, 50.0].into_iter()).unwrap();
        assert_eq!((boost.pays_for, boost.of), (1, 3));
        assert!((boost.shortest_ns.unwrap() - 84_018.0).abs() < 84.0, "{boost:?}");
        let expected = "A faster clock for a call, P1 instead of P2, gains from 84.0\u{a0}µs on, if memory stalls \
                        none of it. By the mean, the calls of 1 of 3 functions are that long.";
        assert_eq!(boost.sentence(), expected);
        assert_eq!(Boost::new(&fx, [].into_iter()), None);
        // Its model has no P-states.
        let other = model("xeon-gold-6130");
        assert_eq!(Boost::new(&other, [1e6].into_iter()), None);
    }
}
