//! Gives files back what they held.
//!
//! The kernel keeps the lower limit of a clock below the upper one: `scaling_min_freq` reads as the
//! upper limit while that is lower than what was written (Linux `drivers/cpufreq/cpufreq.c`,
//! `cpufreq_set_policy`), and goes back to it as soon as it can.

use super::Change;
use crate::journal::record::Record;
use crate::root::{Patience, Root, RootError};

/// Files that can be written.
pub(super) trait Files {
    /// What a file holds.
    fn held(&self, path: &str) -> Result<String, RootError>;
    /// Writes into a file. Returns what it holds then.
    fn put(&self, path: &str, content: &str) -> Result<String, RootError>;
}

impl Files for Root {
    fn held(&self, path: &str) -> Result<String, RootError> {
        self.text(path)
    }

    fn put(&self, path: &str, content: &str) -> Result<String, RootError> {
        self.write(path, content)?;
        self.text_after(path, &[content], Patience::Long)
    }
}

/// A file that holds what Dimmer has written.
pub(super) struct Own {
    pub(super) path: String,
    pub(super) from: String,
    /// What it gets back.
    pub(super) to: String,
}

impl Own {
    /// The file of these records, if it holds what one of them has written, or as much of it as the
    /// upper limit of the clock allows.
    pub(super) fn of(files: &dyn Files, records: &[&Record]) -> Option<Self> {
        let first = records.first()?;
        let Change::File { before, .. } = &first.change else { return None };
        let from = files.held(&first.path).ok().filter(|found| found != before)?;
        let upper = upper_limit(files, &first.path).filter(|upper| *upper == from);
        let is_lowered = |written: &str| upper.is_some() && khz(written) > khz(&from);
        let is_own = records
            .iter()
            .filter_map(|record| record.written())
            .any(|written| written == from || is_lowered(written));
        is_own.then(|| Self { path: first.path.clone(), from, to: before.clone() })
    }

    /// The file of these records, if another program writes it, or the kernel by itself, and it
    /// does not hold its value at rest.
    pub(super) fn at_rest(files: &dyn Files, records: &[&Record]) -> Option<Self> {
        let first = records.first()?;
        let Change::ByOther { rest } = &first.change else { return None };
        let from = files.held(&first.path).ok().filter(|found| found != rest)?;
        Some(Self { path: first.path.clone(), from, to: rest.clone() })
    }

    /// Gives the file back what it held.
    ///
    /// # Errors
    /// The reason why it does not hold that.
    pub(super) fn give_back(&self, files: &dyn Files) -> Result<(), String> {
        match files.put(&self.path, &self.to) {
            Ok(now) if now == self.to => Ok(()),
            Ok(now) => Err(format!("the kernel took the write, and the file holds `{now}`")),
            Err(error) => Err(super::explain(&error)),
        }
    }
}

/// What the upper limit of a clock is, if this is the file of the lower one.
fn upper_limit(files: &dyn Files, path: &str) -> Option<String> {
    let policy = path.strip_suffix("/scaling_min_freq")?;
    files.held(&format!("{policy}/scaling_max_freq")).ok()
}

fn khz(text: &str) -> Option<u64> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::{Report, undo_in};
    use super::*;

    const FOLDER: &str = "/sys/devices/system/cpu/cpufreq/policy0";

    fn path(which: &str) -> String {
        format!("{FOLDER}/scaling_{which}_freq")
    }

    /// A policy from 800 to 3900 MHz, as the kernel has it: what was written into both limits, and
    /// a limit by others. The lower limit is never above the upper one. The switch of turbo writes
    /// the upper one, as `cpufreq_boost_set_sw` does.
    struct Policy {
        lower: Cell<u64>,
        upper: Cell<u64>,
        cap: Cell<u64>,
        boost: Cell<bool>,
    }

    const BOOST: &str = "/sys/devices/system/cpu/cpufreq/boost";

    impl Policy {
        fn new(lower: u64, upper: u64) -> Self {
            Self {
                lower: Cell::new(lower),
                upper: Cell::new(upper),
                cap: Cell::new(3900),
                boost: Cell::new(true),
            }
        }

        fn limits(&self) -> [u64; 2] {
            let upper = self.upper.get().min(self.cap.get());
            [self.lower.get().min(upper), upper]
        }

        /// Asks for this clock as the back end does, and returns the records of it.
        fn ask(&self, records: &mut Vec<Record>, mhz: u64) {
            let order = if mhz > self.limits()[1] { ["max", "min"] } else { ["min", "max"] };
            for which in order {
                let before = self.held(&path(which)).unwrap();
                let record = Record::file(&path(which), &before, &mhz.to_string());
                if before != mhz.to_string() && !records.iter().any(|known| known.covers(&record)) {
                    records.push(record);
                }
                self.put(&path(which), &mhz.to_string()).unwrap();
            }
        }
    }

    impl Files for Policy {
        fn held(&self, path: &str) -> Result<String, RootError> {
            if path == BOOST {
                return Ok(u8::from(self.boost.get()).to_string());
            }
            Ok(self.limits()[usize::from(path.contains("_max_"))].to_string())
        }

        fn put(&self, path: &str, content: &str) -> Result<String, RootError> {
            if path == BOOST {
                self.boost.set(content == "1");
                self.upper.set(if content == "1" { 3900 } else { 3400 });
                return self.held(path);
            }
            let limit = if path.contains("_max_") { &self.upper } else { &self.lower };
            limit.set(content.parse().unwrap());
            self.held(path)
        }
    }

    /// Undoes the requests, and returns what was written into both limits last.
    #[track_caller]
    fn undone(policy: &Policy, records: &[Record]) -> (Report, [u64; 2]) {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        std::fs::create_dir_all(root.path(FOLDER)).unwrap();
        let mut report = Report::default();
        undo_in(&root, policy, records, &mut report);
        (report, [policy.lower.get(), policy.upper.get()])
    }

    #[track_caller]
    fn check(before: [u64; 2], asked: &[u64]) {
        let policy = Policy::new(before[0], before[1]);
        let mut records = Vec::new();
        asked.iter().for_each(|mhz| policy.ask(&mut records, *mhz));
        let (report, now) = undone(&policy, &records);
        assert_eq!(now, before, "{asked:?}: {report:?}");
        assert!(report.failed.is_empty() && report.left.is_empty(), "{asked:?}: {report:?}");
    }

    #[test]
    fn both_limits_come_back_whichever_was_recorded_last() {
        check([800, 2000], &[3900]);
        check([800, 2000], &[3900, 800]);
        check([800, 2000], &[3900, 800, 3900]);
        check([2000, 3900], &[800, 3400]);
        check([2000, 3900], &[800, 3400, 800]);
        check([2000, 2000], &[800, 3900, 3400, 800]);
        check([2000, 2000], &[3900, 800, 3900]);
    }

    /// Limits at or below the fastest clock without turbo, changed meanwhile or not.
    #[test]
    fn limits_come_back_after_the_switch_of_turbo_has_written_them() {
        for (before, asked) in [
            ([800, 2400], None),
            ([800, 3400], None),
            ([2400, 2400], None),
            ([800, 2400], Some(3400)),
            ([3400, 3400], Some(3400)),
            ([800, 3900], Some(3400)),
        ] {
            let policy = Policy::new(before[0], before[1]);
            let held = |which| {
                let value = policy.held(&path(which)).unwrap();
                Record::by_other(&path(which), &value)
            };
            let mut records = vec![held("min"), held("max")];
            asked.into_iter().for_each(|mhz| policy.ask(&mut records, mhz));
            records.push(Record::file(BOOST, "1", "0"));
            policy.put(BOOST, "0").unwrap();
            let (report, now) = undone(&policy, &records);
            assert_eq!((now, policy.boost.get()), (before, true), "{asked:?}: {report:?}");
            assert!(report.failed.is_empty() && report.left.is_empty(), "{report:?}");
        }
    }

    #[test]
    fn a_lower_limit_that_a_cap_by_others_has_lowered_comes_back() {
        let policy = Policy::new(800, 3900);
        let mut records = Vec::new();
        [800, 3900].iter().for_each(|mhz| policy.ask(&mut records, *mhz));
        policy.cap.set(2500);
        let (report, now) = undone(&policy, &records);
        assert_eq!(now, [800, 3900], "{report:?}");
        assert_eq!(report.left.len(), 1, "the upper one may be theirs: {report:?}");
    }
}
