//! By what threads of a program migrate at marks: a profile and a threshold (paper 004), or what
//! they learn.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use dimmer_hook::LEARNED_FILE;
use dimmer_host::bounded_file;
use dimmer_policy::phases::{Profile, Threshold};

use crate::LaunchError;

/// Longer profiles are refused (bytes).
const LONGEST: u64 = 1 << 20;

/// Likewise of what a process has learned: names of C++ functions may be long.
const LONGEST_LEARNED: u64 = 1 << 24;

/// By what threads migrate.
#[derive(Clone, Debug)]
pub enum Guide {
    /// A profile and a threshold.
    Profile(Phases),
    /// What they learn; the threshold is between parts of its speed that code keeps on a slow CPU.
    Learning(Threshold),
}

/// How much longer code may take on a slow CPU to be better off there, if the user does not say
/// (percent). A guess: what many accept as the price of less power.
const SLOWER: f64 = 10.0;

impl Guide {
    /// By what the user says: a file with a profile, its threshold, and how much longer code may
    /// take (percent).
    ///
    /// # Errors
    /// As [`Phases::read`]; [`LaunchError::NotForPhases`]: these do not go together.
    pub fn new(
        profile: Option<&Path>,
        threshold: Option<&str>,
        slower: Option<f64>,
    ) -> Result<Self, LaunchError> {
        match profile {
            Some(_) if slower.is_some() => {
                Err(LaunchError::NotForPhases("--slower is for --phases without a profile"))
            }
            Some(file) => Phases::read(file, threshold).map(Self::Profile),
            None if threshold.is_some() => Err(LaunchError::NotForPhases(
                "--threshold is for --phases=PROFILE; without a profile, --slower is",
            )),
            None => Ok(Self::Learning(Threshold::allowing(slower.unwrap_or(SLOWER)))),
        }
    }
}

/// A profile from a file, and the threshold above which its marks are slow.
#[derive(Clone, Debug)]
pub struct Phases {
    file: PathBuf,
    pub(crate) text: String,
    profile: Profile,
    threshold: Threshold,
}

impl Phases {
    /// Reads a profile. Without a threshold, it is the middle of the largest gap between the
    /// values.
    ///
    /// # Errors
    /// [`LaunchError::Profile`], [`LaunchError::Threshold`].
    pub fn read(file: &Path, threshold: Option<&str>) -> Result<Self, LaunchError> {
        let wrong = |why: String| LaunchError::Profile { file: file.to_owned(), why };
        let text = bounded_file::read_to_string(file, LONGEST);
        let text = text.map_err(|why| wrong(why.to_string()))?;
        let profile = Profile::from_text(&text).map_err(|why| wrong(why.to_string()))?;
        if profile.values().next().is_none() {
            return Err(wrong("no mark: expected lines as `\"MARK\" VALUE`".to_owned()));
        }
        let threshold = match threshold {
            Some(text) => Threshold::parse(text).map_err(|why| why.to_string()),
            None => Threshold::largest_gap(&profile).ok_or_else(|| {
                "all values of the profile are equal: expected a finite number, such as 0.01"
                    .to_owned()
            }),
        };
        let threshold = threshold.map_err(LaunchError::Threshold)?;
        Ok(Self { file: file.to_owned(), text, profile, threshold })
    }

    /// The value above which a mark is slow.
    #[must_use]
    pub fn threshold(&self) -> f64 {
        self.threshold.value()
    }

    /// The names of the marks.
    pub(crate) fn names(&self) -> Vec<String> {
        self.profile.values().map(|(mark, _)| mark.name().to_owned()).collect()
    }

    /// The number of marks that are slow.
    #[must_use]
    pub fn slow(&self) -> usize {
        self.profile.values().filter(|(_, value)| *value > self.threshold.value()).count()
    }

    /// The error about the mark of this name.
    pub(crate) fn wrong(&self, name: &str, why: LaunchError) -> LaunchError {
        let quoted = format!("\"{name}\"");
        let line = self.text.lines().position(|line| line.trim_start().starts_with(&quoted));
        let line = line.map_or(1, |line| line + 1);
        LaunchError::ProfileMark { file: self.file.clone(), line, why: Box::new(why) }
    }
}

/// What processes have learned: the mean of each mark over those that know it, and which of their
/// files cannot be read. Processes write these files, so they may hold anything.
pub(crate) fn learned(directory: &Path) -> (Vec<(String, f64)>, Vec<String>) {
    let (mut sums, mut problems) = (BTreeMap::<String, (f64, f64)>::new(), Vec::new());
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_learned = |name: &OsStr| name.as_encoded_bytes().starts_with(LEARNED_FILE.as_bytes());
    for file in files.filter(|file| is_learned(&file.file_name())) {
        let text = bounded_file::read_to_string(&file.path(), LONGEST_LEARNED);
        let profile = text
            .map_err(|error| error.to_string())
            .and_then(|text| Profile::from_text(&text).map_err(|error| error.to_string()));
        match profile {
            Ok(profile) => {
                for (mark, value) in profile.values() {
                    let (sum, number) = sums.entry(mark.name().to_owned()).or_default();
                    *sum += value;
                    *number += 1.0;
                }
            }
            Err(error) => problems.push(format!("what a process has learned: {error}")),
        }
    }
    let mean = |(mark, (sum, number)): (String, (f64, f64))| (mark, sum / number);
    (sums.into_iter().map(mean).collect(), problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_processes_learned_is_averaged_and_anything_else_reported() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(learned(directory.path()), (vec![], vec![]));
        let write = |name: &str, text: &[u8]| {
            std::fs::write(directory.path().join(name), text).unwrap();
        };
        write("learned-7", b"\"a b\" 0.5\n\"c\" 0.25\n");
        write("learned-8", b"\"a b\" 1\n");
        write("graph", b"nothing of this kind");
        let expected = vec![("a b".to_owned(), 0.75), ("c".to_owned(), 0.25)];
        assert_eq!(learned(directory.path()), (expected.clone(), vec![]));
        write("learned-9", b"\"d\" -1\n");
        write("learned-x", b"\xff\xfe");
        let (found, problems) = learned(directory.path());
        assert_eq!((found, problems.len()), (expected, 2), "{problems:?}");
    }

    #[test]
    fn what_is_wrong_is_named_with_file_line_and_what_is_accepted() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("profile");
        let read = |text: &str, threshold| {
            std::fs::write(&file, text).unwrap();
            Phases::read(&file, threshold)
        };
        let said = |text: &str, threshold| read(text, threshold).unwrap_err().to_string();
        let at = |line| format!("{}: line {line}: ", file.display());
        let number = "expected a finite number that is not negative";
        for value in ["-1", "much", "inf", "nan"] {
            let said = said(&format!("\"a\" 1\n\"b\" {value}\n"), None);
            assert!(said.starts_with(&at(2)) && said.contains(number), "{said}");
        }
        assert!(said("\"a\"\n", None).starts_with(&at(1)));
        assert!(said("", None).contains("no mark: expected lines"));
        for threshold in ["nan", "inf", "", "0,1"] {
            let said = said("\"a\" 1\n", Some(threshold));
            assert!(said.starts_with("--threshold: ") && said.contains("finite number"), "{said}");
        }
        assert!(said("\"a\" 1\n\"b\" 1\n", None).contains("all values of the profile are equal"));
        let phases = read("\"a\" 1\n \"b\"\t3\n", None).unwrap();
        assert_eq!((phases.threshold(), phases.slow()), (2.0, 1));
        let said = phases.wrong("b", LaunchError::NoCommand).to_string();
        assert!(said.starts_with(&at(2)), "{said}");
        let missing = Phases::read(Path::new("/no/such"), None).unwrap_err().to_string();
        assert!(missing.contains("/no/such"), "{missing}");
    }
}
