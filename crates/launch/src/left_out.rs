//! Functions that are not hooked because earlier runs of the program have found that their hooks
//! bring nothing ([`dimmer_policy::hooked`]).
//!
//! What was found holds as long as the choice of functions does ([`Key`]: the program and its
//! files, the model, the kind of machine), and for [`RELIED_ON`] runs. The durations of calls are
//! kept, so if moves take less time than before, the functions are judged by that.
//! `docs/files.md` lists the file.

use std::path::PathBuf;

use dimmer_policy::hooked::{RELIED_ON, Useless};
use serde::{Deserialize, Serialize};

use crate::chosen::Key;
use crate::named::Planned;

/// The name under which it is cached.
const NAME: &str = "-short";

/// What earlier runs have found.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    /// `None`: nothing is cached for this program.
    key: Option<Key>,
    kept: Kept,
}

/// What is cached of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Kept {
    /// The number of runs in a row that have relied on it.
    runs: u32,
    functions: Vec<Found>,
    /// What narrower code would have brought by the model, from and to, in the run in which all
    /// functions were hooked at first.
    forecast: Option<(f64, f64)>,
}

/// A function whose hook brings nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Found {
    file: PathBuf,
    /// The address of its first entry.
    address: u64,
    /// The time that nearly all of its calls did not exceed (ns); `None`: they cannot be timed.
    nearly_all_ns: Option<f64>,
}

impl LeftOut {
    /// What is cached under this key, unless [`RELIED_ON`] runs have relied on it.
    pub(crate) fn read(key: Option<Key>) -> Self {
        let kept = key.as_ref().and_then(|key| key.kept::<Kept>(NAME));
        let kept = kept.filter(|kept| kept.runs < RELIED_ON).unwrap_or_default();
        Self { key, kept }
    }

    /// Why this function is not hooked, with the time that nearly all of its calls did not exceed
    /// (ns); `None` if it is hooked. Moving a call of it takes `round_trip_ns`.
    pub(crate) fn why(
        &self,
        planned: &Planned,
        round_trip_ns: f64,
    ) -> Option<(Useless, Option<f64>)> {
        let address = planned.entries.first()?.address;
        let is_it = |found: &&Found| found.address == address && found.file == planned.file;
        match self.kept.functions.iter().find(is_it)?.nearly_all_ns {
            None => Some((Useless::Untimed, None)),
            Some(ns) => (ns < round_trip_ns).then_some((Useless::TooShort, Some(ns))),
        }
    }

    /// What narrower code would have brought by the model; `None` if all functions were hooked at
    /// the start of this run, or if it was not known in the one that this relies on.
    pub(crate) fn forecast(&self) -> Option<(f64, f64)> {
        self.kept.forecast
    }

    /// Caches the functions that are without a hook now, each with the time that nearly all of its
    /// calls did not exceed (ns), and the forecast of this run.
    pub(crate) fn keep<'a>(
        self,
        functions: impl Iterator<Item = (&'a Planned, Option<f64>)>,
        forecast: Option<(f64, f64)>,
    ) {
        let Some(key) = self.key else { return };
        let found = |(planned, nearly_all_ns): (&Planned, Option<f64>)| {
            let address = planned.entries.first()?.address;
            Some(Found { file: planned.file.clone(), address, nearly_all_ns })
        };
        let runs = if self.kept.functions.is_empty() { 0 } else { self.kept.runs + 1 };
        let functions = functions.filter_map(found).collect();
        key.keep(NAME, &Kept { runs, functions, forecast });
    }
}

#[cfg(test)]
mod tests {
    use dimmer_hook::PlannedEntry;

    use super::*;

    fn planned(address: u64) -> Planned {
        let entries = vec![PlannedEntry::new(address, 5)];
        Planned { file: PathBuf::from("/lib/a.so"), title: "f".to_owned(), entries }
    }

    #[test]
    fn a_function_is_left_out_whose_calls_were_shorter_than_a_move_is_now() {
        let found = |address, nearly_all_ns| Found {
            file: PathBuf::from("/lib/a.so"),
            address,
            nearly_all_ns,
        };
        let functions = vec![found(16, Some(900.0)), found(32, None)];
        let kept = Kept { functions, ..Kept::default() };
        let left_out = LeftOut { key: None, kept };
        let short = Some((Useless::TooShort, Some(900.0)));
        assert_eq!(left_out.why(&planned(16), 1000.0), short);
        assert_eq!(left_out.why(&planned(16), 800.0), None);
        assert_eq!(left_out.why(&planned(32), 800.0), Some((Useless::Untimed, None)));
        assert_eq!(left_out.why(&planned(48), 1000.0), None);
        let elsewhere = Planned { file: PathBuf::from("/lib/b.so"), ..planned(16) };
        assert_eq!(left_out.why(&elsewhere, 1000.0), None);
    }
}
