//! Counts what `cargo test -- --show-output` reports, over all test binaries.
//!
//! In the test harness, a test cannot report at run time that it cannot run. Such a test prints
//! `SKIPPED: reason` and passes. It counts here as skipped, not as passed.

use std::collections::BTreeSet;

/// The tests of all binaries in a log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Tests that ran and passed.
    pub(crate) passed: usize,
    /// Tests that failed.
    pub(crate) failed: usize,
    /// Tests that reported that they could not run, and documentation tests left out.
    pub(crate) skipped: usize,
    /// One line `TEST: REASON` for each test that reported that it could not run.
    pub(crate) reasons: Vec<String>,
    /// What each failed test printed first, up to [`LINES_OF_A_FAILURE`].
    pub(crate) failures: Vec<String>,
}

/// Enough for what was expected, and what was found.
const LINES_OF_A_FAILURE: usize = 30;

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Reads a log line by line.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    counts: Counts,
    /// Tests that have run for more than a minute and have not ended.
    slow: BTreeSet<String>,
    in_successes: bool,
    in_failures: bool,
    /// The test whose output is read, if it did not fail.
    test: Option<String>,
    /// Lines of the failed test whose output is read.
    lines_of_failure: Option<usize>,
    skipped_in_binary: usize,
}

impl Reader {
    /// Reads the next line of the log.
    pub(crate) fn line(&mut self, line: &str) {
        if let Some(test) = line.strip_prefix("test ") {
            if let Some(test) = test.strip_suffix(" has been running for over 60 seconds") {
                self.slow.insert(test.to_owned());
            } else if let Some((test, _)) = test.split_once(" ... ") {
                self.slow.remove(test);
            }
        }
        let section = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" ----"));
        if line == "successes:" || line == "failures:" {
            self.in_successes = line == "successes:";
            self.in_failures = line == "failures:";
            (self.test, self.lines_of_failure) = (None, None);
        } else if let Some(name) = section.and_then(|section| section.strip_suffix(" stdout")) {
            self.test = self.in_successes.then(|| name.to_owned());
            if self.in_failures {
                self.lines_of_failure = Some(0);
                self.counts.failures.push(name.to_owned());
            }
        } else if let Some(reason) = line.trim_start().strip_prefix("SKIPPED:") {
            // A test that gives several reasons is still one test.
            if let Some(test) = self.test.take() {
                self.skipped_in_binary += 1;
                self.counts.reasons.push(format!("{test}: {}", reason.trim()));
            }
        } else if let Some(result) = line.strip_prefix("test result: ") {
            let count = |what: &str| count_before(result, what);
            self.counts.passed += count("passed").saturating_sub(self.skipped_in_binary);
            self.counts.failed += count("failed");
            self.counts.skipped += count("ignored") + self.skipped_in_binary;
            (self.in_successes, self.in_failures) = (false, false);
            (self.test, self.lines_of_failure) = (None, None);
            self.skipped_in_binary = 0;
        } else if let Some((lines, failure)) =
            self.lines_of_failure.as_mut().zip(self.counts.failures.last_mut())
            && *lines < LINES_OF_A_FAILURE
            && !line.trim().is_empty()
        {
            *lines += 1;
            failure.push_str("\n    ");
            failure.push_str(line);
        }
    }

    /// The test binary was killed, as its tests had not ended for too long: they count as failed.
    pub(crate) fn killed(&mut self) {
        let slow = std::mem::take(&mut self.slow);
        self.counts.failed += slow.len().max(1);
        self.counts.failures.extend(slow.into_iter().map(|test| format!("{test}: did not end")));
    }

    /// The counts of the whole log.
    pub(crate) fn finish(self) -> Counts {
        self.counts
    }
}

/// The number before the word `what` in `ok. 3 passed; 0 failed; ...`.
fn count_before(result: &str, what: &str) -> usize {
    let words: Vec<&str> = result.split([' ', ';']).collect();
    let position = words.iter().position(|word| *word == what);
    position
        .and_then(|position| words.get(position.checked_sub(1)?)?.parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(log: &str, expected: &str, reasons: &[&str]) {
        let mut reader = Reader::default();
        log.lines().for_each(|line| reader.line(line));
        let counts = reader.finish();
        assert_eq!(counts.to_string(), expected);
        assert_eq!(counts.reasons, reasons);
    }

    const ONE_BINARY: &str = "\
running 3 tests
test a ... ok
test b ... ok
test c ... ok

successes:

---- a stdout ----
SKIPPED: no AVX-512 here
SKIPPED: nor AMX

---- b stdout ----
all is well

successes:
    a
    b
    c

test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn counts_a_skipped_test_once_and_not_as_passed() {
        check(ONE_BINARY, "2 passed, 0 failed, 2 skipped", &["a: no AVX-512 here"]);
    }

    #[test]
    fn tests_that_do_not_end_have_failed() {
        let long = |test: &str| format!("test {test} has been running for over 60 seconds");
        let mut reader = Reader::default();
        for line in ["running 4 tests", "test a ... ok", &long("b"), &long("c"), "test c ... ok"] {
            reader.line(line);
        }
        reader.killed();
        let counts = reader.finish();
        assert_eq!((counts.failed, counts.failures), (1, vec!["b: did not end".to_owned()]));
    }

    #[test]
    fn keeps_the_beginning_of_what_a_failed_test_printed() {
        let log = "\
test a ... FAILED

failures:

---- a stdout ----

left 1, right 2
stack backtrace:

failures:
    a

test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out
---- b stdout ----
not of a failed test
";
        let mut reader = Reader::default();
        log.lines().for_each(|line| reader.line(line));
        assert_eq!(reader.finish().failures, ["a\n    left 1, right 2\n    stack backtrace:"]);
    }

    #[test]
    fn sums_over_binaries() {
        let second = ONE_BINARY.replace("SKIPPED", "note");
        check(
            &format!("{ONE_BINARY}\n{second}"),
            "5 passed, 0 failed, 3 skipped",
            &["a: no AVX-512 here"],
        );
    }

    #[test]
    fn a_failed_test_is_not_skipped() {
        check(
            "failures:\n\n---- a stdout ----\nSKIPPED: in part\nthread 'a' panicked\n\n\
             test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n",
            "0 passed, 1 failed, 0 skipped",
            &[],
        );
    }
}
