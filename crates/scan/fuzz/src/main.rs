//! Damages ELF files at random, guided by the code that they reach, and scans each. A scan must
//! return soon, and never panic.
//!
//! In this folder, on stable Rust: `cargo run --release -- --seconds 300`. It damages short files,
//! of which it scans thousands per second. Costs that are quadratic in the length show only in long
//! files, given as arguments.

mod case;
mod coverage;
mod layout;
mod mutate;
mod seeds;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use dimmer_scan::ScanError;
use fastrand::Rng;

use case::Outcome;
use coverage::Coverage;

/// Longest case that is kept for further damage, in bytes.
const LONGEST: usize = 1 << 20;

/// Damages ELF files at random and scans them. Exits with status 1 if a scan panics, takes too
/// long, or contradicts itself.
#[derive(Debug, Parser)]
struct Arguments {
    /// Files to start with; some of this machine's libraries if there are none.
    files: Vec<PathBuf>,
    /// How long to run, in seconds.
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// Seed of the random numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for findings, and for the running case, which stays there if the program is killed.
    #[arg(long, default_value = "findings")]
    out: PathBuf,
    /// Only scan the files as they are, to try a finding again.
    #[arg(long)]
    only: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Runs the fuzzer. Returns the number of findings.
fn run(arguments: &Arguments) -> std::io::Result<usize> {
    fs::create_dir_all(&arguments.out)?;
    let paths = if arguments.files.is_empty() { seeds::found() } else { arguments.files.clone() };
    case::keep_panics();
    let mut fuzzer = Fuzzer::new(&arguments.out, arguments.seed)?;
    for path in &paths {
        let bytes = fs::read(path)?;
        fuzzer.run(&bytes)?;
        fuzzer.corpus.push(bytes);
    }
    println!("{} files to begin with, {} edges", paths.len(), fuzzer.coverage.edges());
    if !fuzzer.coverage.is_on() {
        println!("no edges are counted: run it in its folder, where .cargo/config.toml says how");
    }
    if !arguments.only {
        fuzzer.go_on(Duration::from_secs(arguments.seconds))?;
    }
    fuzzer.report();
    fs::remove_file(fuzzer.current)?;
    Ok(fuzzer.findings.len())
}

struct Fuzzer {
    out: PathBuf,
    /// Seed of the random numbers.
    seed: u64,
    /// The file with the running case.
    current: PathBuf,
    watchdog: Arc<Watchdog>,
    coverage: Coverage,
    /// Files to damage: the given ones, and those that reached something new.
    corpus: Vec<Vec<u8>>,
    start: Instant,
    cases: u64,
    scanned: u64,
    functions: u64,
    refused: BTreeMap<String, u64>,
    /// Messages of findings, without numbers.
    findings: BTreeSet<String>,
    extremes: Extremes,
}

/// The cases that took the most time or memory for their length.
#[derive(Default)]
struct Extremes {
    seconds_per_byte: f64,
    slowest: String,
    memory_per_byte: f64,
    largest: String,
}

impl Extremes {
    fn add(&mut self, bytes: &[u8], outcome: &Outcome) {
        // There are tables to fill, whatever the length.
        let length = bytes.len().max(4096) as f64;
        if outcome.took.as_secs_f64() / length > self.seconds_per_byte {
            // Scans again, as something else may have run in between.
            let took = outcome.took.min(case::run(bytes).took);
            if took.as_secs_f64() / length > self.seconds_per_byte {
                self.seconds_per_byte = took.as_secs_f64() / length;
                self.slowest = format!("{took:?} for {} bytes", bytes.len());
            }
        }
        let memory = outcome.memory as f64 / length;
        if memory > self.memory_per_byte {
            self.memory_per_byte = memory;
            self.largest = format!("{} bytes for {}", outcome.memory, bytes.len());
        }
    }
}

impl Fuzzer {
    fn new(out: &Path, seed: u64) -> std::io::Result<Self> {
        let current = out.join(format!("running-{}", std::process::id()));
        fs::write(&current, [])?;
        let watchdog = Arc::new(Watchdog::default());
        let (watching, file, kept) =
            (watchdog.clone(), current.clone(), out.join(format!("hang-{seed}.elf")));
        thread::spawn(move || watching.watch(&file, &kept));
        Ok(Self {
            out: out.to_owned(),
            seed,
            current,
            watchdog,
            coverage: Coverage::new(),
            corpus: Vec::new(),
            start: Instant::now(),
            cases: 0,
            scanned: 0,
            functions: 0,
            refused: BTreeMap::new(),
            findings: BTreeSet::new(),
            extremes: Extremes::default(),
        })
    }

    fn go_on(&mut self, time: Duration) -> std::io::Result<()> {
        let mut rng = Rng::with_seed(self.seed);
        self.start = Instant::now();
        // Leaves out the first scan, which makes tables.
        self.extremes = Extremes::default();
        let (mut told, mut bytes) = (self.start, Vec::new());
        while self.start.elapsed() < time && !self.corpus.is_empty() {
            bytes.clear();
            bytes.extend_from_slice(self.choose(&mut rng));
            let other = rng.usize(0..self.corpus.len());
            mutate::mutate(&mut rng, &mut bytes, &self.corpus[other]);
            if self.run(&bytes)? && bytes.len() <= LONGEST {
                self.corpus.push(bytes.clone());
            }
            if told.elapsed() > Duration::from_secs(10) {
                told = Instant::now();
                self.tell();
            }
        }
        Ok(())
    }

    /// Chooses a file to damage: short ones more often, as they take less time, and new ones, as
    /// they lead to more.
    fn choose(&self, rng: &mut Rng) -> &[u8] {
        let count = self.corpus.len();
        let first = if rng.bool() { count - count.div_ceil(8) } else { 0 };
        let three = std::array::from_fn::<_, 3, _>(|_| &self.corpus[rng.usize(first..count)]);
        three.into_iter().min_by_key(|bytes| bytes.len()).map_or(&[], Vec::as_slice)
    }

    /// Runs a case. Returns whether it reached something new.
    fn run(&mut self, bytes: &[u8]) -> std::io::Result<bool> {
        fs::write(&self.current, bytes)?;
        self.watchdog.begin(bytes.len());
        self.coverage.begin();
        let outcome = case::run(bytes);
        let new = self.coverage.end();
        self.watchdog.end();
        let problem = case::problem(bytes, &outcome, self.cases.is_multiple_of(64));
        self.cases += 1;
        self.extremes.add(bytes, &outcome);
        match &outcome.answer {
            Ok(Ok(scan)) => {
                self.scanned += 1;
                self.functions += scan.functions.len() as u64;
            }
            Ok(Err(error)) => *self.refused.entry(kind(error)).or_default() += 1,
            Err(_) => {}
        }
        if let Some(message) = problem {
            self.keep(bytes, &message)?;
        }
        Ok(new)
    }

    /// Writes a finding, unless it is like an earlier one.
    fn keep(&mut self, bytes: &[u8], message: &str) -> std::io::Result<()> {
        let words = message.split_whitespace();
        let words: Vec<_> =
            words.filter(|word| !word.starts_with(|c: char| c.is_ascii_digit())).collect();
        if self.findings.insert(words.join(" ")) {
            let path = self.out.join(format!("finding-{}-{}.elf", self.seed, self.findings.len()));
            fs::write(&path, bytes)?;
            println!("FOUND {}: {message}", path.display());
        }
        Ok(())
    }

    fn tell(&self) {
        let seconds = self.start.elapsed().as_secs_f64();
        println!(
            "{seconds:.0} s: {} cases, {:.0} a second, {} edges, {} kept, {} findings",
            self.cases,
            self.cases as f64 / seconds,
            self.coverage.edges(),
            self.corpus.len(),
            self.findings.len()
        );
    }

    fn report(&self) {
        self.tell();
        println!("{} scanned, with {} functions; refused:", self.scanned, self.functions);
        for (kind, count) in &self.refused {
            println!("{count:10} {kind}");
        }
        let Extremes { slowest, largest, .. } = &self.extremes;
        println!("most time for the length: {slowest}; most memory: {largest}");
    }
}

/// The kind of an error, without the parts that differ from file to file.
fn kind(error: &ScanError) -> String {
    match error {
        ScanError::NotElf { .. } => "not an ELF file".to_owned(),
        ScanError::NotX8664 { .. } => "not of x86-64".to_owned(),
        ScanError::NotLinked { .. } => "not linked".to_owned(),
        ScanError::NoSections => "without section headers".to_owned(),
        ScanError::Damaged { place, .. } => {
            let place = place.split_once(" at ").map_or(place.as_str(), |(before, _)| before);
            format!("damaged: {place}")
        }
        _ => "other".to_owned(),
    }
}

/// Ends the program if a case hangs.
#[derive(Default)]
struct Watchdog {
    /// The deadline of the running case; `None` if none runs.
    until: Mutex<Option<Instant>>,
}

impl Watchdog {
    fn begin(&self, length: usize) {
        // Shorter files get the time of a megabyte too: their time is checked when they are done.
        let megabytes = (length as f64 / 1e6).max(1.0);
        self.set(Some(Instant::now() + case::MOST_PER_MEGABYTE.mul_f64(megabytes)));
    }

    fn end(&self) {
        self.set(None);
    }

    fn set(&self, until: Option<Instant>) {
        if let Ok(mut current) = self.until.lock() {
            *current = until;
        }
    }

    /// Moves the case in `file` to `kept` and ends the program, if the case hangs.
    fn watch(&self, file: &Path, kept: &Path) {
        loop {
            thread::sleep(Duration::from_millis(100));
            let until = self.until.lock().ok().and_then(|until| *until);
            if until.is_some_and(|until| until < Instant::now()) {
                let kept = fs::rename(file, kept).map_or(file, |()| kept);
                println!("FOUND {}: hangs", kept.display());
                std::process::exit(1);
            }
        }
    }
}
