//! One case: a scan, and what must hold of it for any bytes.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use dimmer_scan::{
    Archive, Code, Names, Scan, ScanError, build_id, debug_link, embedded_debug_file, scan,
};
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Time limit for a megabyte of file. A scan takes a few milliseconds, even if edges are counted.
pub const MOST_PER_MEGABYTE: Duration = Duration::from_secs(2);
/// Lowest time limit, for a file of any size, as other programs run too.
const LEAST_LIMIT: Duration = Duration::from_millis(20);

/// Most bytes of memory for a byte of file. Packed relocations take the most: 63 words of 8 bytes
/// for 8 bytes, twice, in vectors that grow by doubling.
const MOST_MEMORY: usize = 512;
/// Most bytes for an empty file. The first scan makes a table of all instructions, of a megabyte.
const LEAST_MEMORY: usize = 4 << 20;

/// The message of the last panic.
static PANIC: Mutex<String> = Mutex::new(String::new());

/// Stores the messages of panics instead of printing them.
pub fn keep_panics() {
    panic::set_hook(Box::new(|panic| {
        if let Ok(mut last) = PANIC.lock() {
            *last = panic.to_string().replace('\n', " ");
        }
    }));
}

/// The outcome of a case.
#[derive(Debug)]
pub struct Outcome {
    /// The result of the scan, or the message of its panic.
    pub answer: Result<Result<Scan, ScanError>, String>,
    /// How long the scan took.
    pub took: Duration,
    /// The scan's peak memory use in bytes.
    pub memory: usize,
}

/// Scans `bytes`.
pub fn run(bytes: &[u8]) -> Outcome {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let start = Instant::now();
    let answer = panic::catch_unwind(|| scan(bytes));
    let took = start.elapsed();
    let memory = MEMORY.peak_usage().saturating_sub(before);
    let said = |_| PANIC.lock().map_or_else(|_| String::new(), |last| last.clone());
    Outcome { answer: answer.map_err(said), took, memory }
}

/// What is wrong with the outcome of scanning `bytes`, if anything is. With `twice`, scans them
/// again to compare.
pub fn problem(bytes: &[u8], outcome: &Outcome, twice: bool) -> Option<String> {
    let scanned = match &outcome.answer {
        Err(panic) => return Some(panic.clone()),
        Ok(scanned) => scanned,
    };
    let limit = LEAST_LIMIT.max(MOST_PER_MEGABYTE.mul_f64(bytes.len() as f64 / 1e6));
    if outcome.took > limit && (0..3).all(|_| run(bytes).took > limit) {
        return Some(format!("took {:?} for {} bytes", outcome.took, bytes.len()));
    }
    if outcome.memory > LEAST_MEMORY + MOST_MEMORY * bytes.len() {
        return Some(format!("used {} bytes of memory for {}", outcome.memory, bytes.len()));
    }
    let checked = panic::catch_unwind(AssertUnwindSafe(|| {
        check_names(bytes);
        match scanned {
            Ok(scan) => check_scan(scan, bytes),
            Err(error) => assert!(!error.to_string().is_empty(), "an error says nothing"),
        }
        if twice {
            assert!(scan(bytes) == *scanned, "the same bytes give another result");
        }
    }));
    checked.is_err().then(|| PANIC.lock().map_or_else(|_| String::new(), |last| last.clone()))
}

/// Runs the readers of names on the file. They must finish, with any result.
fn check_names(bytes: &[u8]) {
    for name in
        [Names::read(bytes).err(), debug_link(bytes).err(), embedded_debug_file(bytes).err()]
    {
        assert!(name.is_none_or(|error| !error.to_string().is_empty()), "an error says nothing");
    }
    let mut archive = b"!<arch>\nmember/         0           0     0     100644  ".to_vec();
    archive.extend(format!("{:<10}`\n", bytes.len()).bytes());
    archive.extend(bytes);
    // The type of an object. Other members are left out.
    if let Some(kind) = archive.get_mut(68 + 16) {
        *kind = 1;
    }
    let (Ok(archive), Ok(code), Ok(scan)) =
        (Archive::read(&archive), Code::read(bytes), scan(bytes))
    else {
        return;
    };
    let ranges: Vec<_> = scan.functions.into_iter().map(|function| function.addresses).collect();
    assert!(archive.names(&code, &ranges).len() <= ranges.len(), "more names than functions");
}

/// Checks what the documentation of `scan` promises.
fn check_scan(scan: &Scan, bytes: &[u8]) {
    assert_eq!(build_id(bytes), Ok(scan.build_id.clone()));
    let (functions, totals) = (&scan.functions, &scan.totals);
    let disjoint = functions.windows(2).all(|two| two[0].addresses.end <= two[1].addresses.start);
    assert!(disjoint, "functions overlap or are not by address");
    assert!(totals.function_bytes <= totals.code_bytes, "more in functions than there is");
    assert!(totals.code_bytes <= bytes.len() as u64, "more code than file");
    assert_eq!(totals.symbols + totals.frames + totals.seeds, functions.len());
    for function in functions {
        let (range, address) = (&function.addresses, function.addresses.start);
        assert!(!range.is_empty(), "an empty function at {address:#x}");
        let own = scan.at(address).map(|own| own.addresses.start);
        assert_eq!(own, Some(address), "another function is where one begins");
        let length = range.end - address;
        let decoded = function.instructions.total() + u64::from(function.undecodable_bytes);
        assert!(decoded <= length, "more instructions than bytes at {address:#x}");
        if let Ok(displaced) = function.hook {
            assert!((5..=19).contains(&displaced), "{displaced} bytes displaced at {address:#x}");
            // Padding after a function may be displaced with it, but not the next function.
            let last = address + u64::from(displaced) - 1;
            let other = scan.at(last).is_some_and(|other| other.addresses.start != address);
            assert!(!other, "another function displaced by a jump at {address:#x}");
        }
        let mut free = u64::from(function.hook.unwrap_or(1));
        for entry in &function.entries {
            let offset = u64::from(entry.offset);
            assert!(offset >= free, "jumps over entries at {address:#x} overlap");
            let displaced = entry.hook.map_or(1, u64::from);
            assert!(displaced == 1 || (5..=23).contains(&displaced), "{displaced} bytes displaced");
            free = offset + displaced;
            assert!(free <= length, "an entry behind the function at {address:#x}");
        }
        for hot in &function.loops {
            let within = range.start <= hot.addresses.start && hot.addresses.end <= range.end;
            assert!(
                within && !hot.addresses.is_empty(),
                "a loop outside the function at {address:#x}"
            );
            assert!(hot.instructions.wide() > 0, "a loop that is not wide at {address:#x}");
        }
    }
}
