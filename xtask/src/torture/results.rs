//! The runs made so far, one line each.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};

/// How a run compares with the plain run.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    /// Output and end are the same.
    Same,
    /// The end is the same; the output also differs between runs without Dimmer.
    EndSame,
    /// Not run, for a reason.
    Left(String),
    Failed(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.write_str("same"),
            Self::EndSame => f.write_str("end-same"),
            Self::Left(why) => write!(f, "left: {why}"),
            Self::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

impl Verdict {
    fn read(text: &str) -> Option<Self> {
        match text.split_once(": ") {
            None if text == "same" => Some(Self::Same),
            None if text == "end-same" => Some(Self::EndSame),
            Some(("left", why)) => Some(Self::Left(why.to_owned())),
            Some(("failed", why)) => Some(Self::Failed(why.to_owned())),
            _ => None,
        }
    }
}

/// One run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    name: String,
    way: String,
    turn: usize,
    verdict: Verdict,
    seconds: f64,
    /// Its time, relative to the faster plain run.
    slower: f64,
}

impl Entry {
    pub(super) fn new(
        name: &str,
        way: &str,
        turn: usize,
        verdict: Verdict,
        seconds: f64,
        slower: f64,
    ) -> Self {
        Self { name: name.to_owned(), way: way.to_owned(), turn, verdict, seconds, slower }
    }

    /// A run that was not made.
    pub(super) fn left(name: &str, way: &str, turn: usize, why: &str) -> Self {
        Self::new(name, way, turn, Verdict::Left(why.to_owned()), 0.0, 0.0)
    }

    /// A workload that was not run at all.
    pub(super) fn skipped(name: &str, why: &str) -> Self {
        Self::left(name, "all", 0, why)
    }

    fn write(&self) -> String {
        let Self { name, way, turn, verdict, seconds, slower } = self;
        format!("{name}\t{way}\t{turn}\t{seconds:.3}\t{slower:.2}\t{verdict}")
    }

    fn read(fields: &[&str]) -> Option<Self> {
        let [name, way, turn, seconds, slower, verdict] = fields else { return None };
        Some(Self {
            name: (*name).to_owned(),
            way: (*way).to_owned(),
            turn: turn.parse().ok()?,
            verdict: Verdict::read(verdict)?,
            seconds: seconds.parse().ok()?,
            slower: slower.parse().ok()?,
        })
    }
}

/// All runs with the same binaries.
#[derive(Debug)]
pub(super) struct Results {
    file: File,
    stamp: String,
    entries: Vec<Entry>,
    complete: BTreeSet<String>,
}

/// The text in place of the way, in the line of a complete workload.
const COMPLETE: &str = "complete";

impl Results {
    /// Reads the runs made with these binaries, to go on there. Runs of incomplete workloads are
    /// made again.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub(super) fn open(path: &Path, stamp: &str) -> Result<Self> {
        let text = fs::read_to_string(path).unwrap_or_default();
        let (mut entries, mut complete) = (Vec::new(), BTreeSet::new());
        for line in text.lines() {
            match line.split('\t').collect::<Vec<_>>().as_slice() {
                [of, name, way] if *of == stamp && *way == COMPLETE => {
                    complete.insert((*name).to_owned());
                }
                [of, fields @ ..] if *of == stamp => entries.extend(Entry::read(fields)),
                _ => {}
            }
        }
        entries.retain(|entry| complete.contains(&entry.name));
        let file = File::options().create(true).append(true).open(path);
        let file = file.with_context(|| path.display().to_string())?;
        Ok(Self { file, stamp: stamp.to_owned(), entries, complete })
    }

    pub(super) fn has_all(&self, name: &str) -> bool {
        self.complete.contains(name)
    }

    pub(super) fn add(&mut self, entry: Entry) -> Result<()> {
        writeln!(self.file, "{}\t{}", self.stamp, entry.write())?;
        self.entries.push(entry);
        Ok(())
    }

    pub(super) fn complete(&mut self, name: &str) -> Result<()> {
        writeln!(self.file, "{}\t{name}\t{COMPLETE}", self.stamp)?;
        self.complete.insert(name.to_owned());
        Ok(())
    }

    fn of<'a>(&'a self, names: &'a BTreeSet<&str>) -> impl Iterator<Item = &'a Entry> {
        self.entries.iter().filter(|entry| names.contains(&*entry.name))
    }

    pub(super) fn failures(&self, names: &BTreeSet<&str>) -> usize {
        self.of(names).filter(|entry| matches!(entry.verdict, Verdict::Failed(_))).count()
    }

    /// A line for each way, one for each failure, and one for each workload that was left out.
    pub(super) fn table(&self, names: &BTreeSet<&str>) -> String {
        let mut ways: Vec<&str> = Vec::new();
        for entry in self.of(names) {
            if !ways.contains(&&*entry.way) {
                ways.push(&entry.way);
            }
        }
        let mut text = format!(
            "{:<14}{:>6}{:>6}{:>10}{:>8}{:>6}{:>14}\n",
            "way", "runs", "same", "end same", "failed", "left", "times as long"
        );
        for way in ways {
            let of_way: Vec<&Entry> = self.of(names).filter(|entry| entry.way == way).collect();
            let count =
                |is: fn(&Verdict) -> bool| of_way.iter().filter(|entry| is(&entry.verdict)).count();
            let left = count(|verdict| matches!(verdict, Verdict::Left(_)));
            let made = of_way.iter().filter(|entry| entry.slower > 0.0);
            let mut slower: Vec<f64> = made.map(|entry| entry.slower).collect();
            slower.sort_by(f64::total_cmp);
            let median =
                slower.get(slower.len() / 2).map_or(String::new(), |middle| format!("{middle:.2}"));
            let _ = writeln!(
                text,
                "{way:<14}{:>6}{:>6}{:>10}{:>8}{left:>6}{median:>14}",
                of_way.len() - left,
                count(|verdict| *verdict == Verdict::Same),
                count(|verdict| *verdict == Verdict::EndSame),
                count(|verdict| matches!(verdict, Verdict::Failed(_))),
            );
        }
        for entry in self.of(names) {
            if let Verdict::Failed(why) = &entry.verdict {
                let _ = writeln!(text, "FAILED {} {} {}: {why}", entry.name, entry.way, entry.turn);
            }
        }
        // A line for each reason, however often it occurs.
        let left: BTreeSet<(&str, String)> = self
            .of(names)
            .filter(|entry| matches!(entry.verdict, Verdict::Left(_)))
            .map(|entry| (&*entry.name, entry.verdict.to_string()))
            .collect();
        for (name, verdict) in left {
            let _ = writeln!(text, "{name}: {verdict}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_campaign_goes_on_where_it_was_with_the_same_binaries() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results");
        let mut results = Results::open(&path, "these").unwrap();
        let same = Entry::new("one", "observe", 0, Verdict::Same, 1.0, 1.5);
        let failed = Verdict::Failed("ended with 139 instead of 0".to_owned());
        let failed = Entry::new("one", "migrate", 1, failed, 0.5, 2.0);
        for entry in [&same, &failed] {
            results.add(entry.clone()).unwrap();
        }
        results.complete("one").unwrap();
        results.add(Entry::left("two", "auto", 0, "nothing to move")).unwrap();
        drop(results);
        let again = Results::open(&path, "these").unwrap();
        assert_eq!(again.entries, [same, failed]);
        assert!(again.has_all("one") && !again.has_all("two"));
        let names = BTreeSet::from(["one"]);
        assert_eq!(again.failures(&names), 1);
        assert!(again.table(&names).contains("FAILED one migrate 1: ended with 139 instead of 0"));
        assert!(Results::open(&path, "others").unwrap().entries.is_empty());
    }
}
