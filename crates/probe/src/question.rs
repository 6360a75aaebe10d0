//! What `dimmer probe --mode` can be asked for.

use crate::mode::Mode;

/// A question: one of the [`Mode`]s, which run wide SIMD code, or one that runs none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// What wide SIMD code costs.
    Simd(Mode),
    /// What waiting, waking and moving cost ([`crate::latency`]).
    Latency,
    /// How long requests of clocks take, and the clocks to change ([`crate::transition`]).
    Pstate,
}

impl Question {
    /// All questions.
    pub const ALL: [Self; Mode::ALL.len() + 2] = {
        let mut all = [Self::Latency; Mode::ALL.len() + 2];
        let mut at = 0;
        while at < Mode::ALL.len() {
            all[at] = Self::Simd(Mode::ALL[at]);
            at += 1;
        }
        all[at + 1] = Self::Pstate;
        all
    };

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Simd(mode) => mode.name(),
            Self::Latency => "latency",
            Self::Pstate => "pstate",
        }
    }

    /// The mode, if it runs wide SIMD code.
    #[must_use]
    pub const fn mode(self) -> Option<Mode> {
        match self {
            Self::Simd(mode) => Some(mode),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_question_has_its_own_name() {
        let mut names = Question::ALL.map(Question::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Question::ALL.len());
        assert_eq!(Question::ALL.into_iter().filter_map(Question::mode).count(), Mode::ALL.len());
    }
}
