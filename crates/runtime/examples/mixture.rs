//! Threads that use everything at once: closures with and without waiting, borrowed calls, explicit
//! migrations, regions. For tests:
//!
//! ```text
//! mixture TURNS          each thread takes TURNS turns; prints the total amount of work
//! mixture TURNS NUMBER   the process runs into a fault in the middle of the turn with that number
//! mixture forever        runs until it is killed; prints `ready` once all have taken a turn
//! ```

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::sync::atomic::{AtomicU64, Ordering};

use dimmer_host::affinity;
use dimmer_host::root::Root;
use dimmer_runtime::{Cores, Site, region};

const THREADS: u64 = 4;

static DONE: AtomicU64 = AtomicU64::new(0);
static CLOSURE: Site = Site::new("closure", file!(), line!());

/// One piece of work. In the turn with the number `fatal`, it runs into a fault.
fn work(number: u64, fatal: u64) -> u64 {
    if number == fatal {
        // SAFETY: none: the fault is intended.
        unsafe { std::ptr::null_mut::<u64>().write_volatile(number) };
    }
    DONE.fetch_add(1, Ordering::Relaxed);
    number
}

/// A turn of a thread: uses every way once, in an order that depends on `number`.
fn turn(cores: &Cores, number: u64, fatal: u64) {
    let pending = number.is_multiple_of(3).then(|| cores.begin(move || work(number, fatal)));
    for way in 0..5 {
        let given = match (way + number) % 5 {
            0 => cores.delegate(|| work(number, fatal)),
            1 => cores.migrate(|| work(number, fatal)),
            2 => CLOSURE.run(|| work(number, fatal)),
            3 => {
                let _outer = region!("outer");
                let _inner = region!("inner");
                work(number, fatal)
            }
            _ => match cores.begin_migration() {
                Ok(mut migration) => {
                    let _away = migration.go(0);
                    work(number, fatal)
                }
                Err(_) => work(number, fatal),
            },
        };
        assert_eq!(given, number);
    }
    if let Some(pending) = pending {
        assert_eq!(pending.join(), number);
    }
}

fn main() {
    // A fault should not leave a core file.
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads the limit.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize| arguments.get(index).and_then(|text| text.parse::<u64>().ok());
    let turns = number(0).unwrap_or(u64::MAX);
    let fatal = number(1).unwrap_or(u64::MAX);
    let allowed = affinity::allowed().unwrap_or_default();
    let Some(last) = allowed.last() else { return };
    let cores = match Cores::start(&Root::live(), &[*last]) {
        Ok(cores) => cores,
        Err(error) => return println!("{error}"),
    };
    let begun = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cores, begun) = (&cores, &begun);
            scope.spawn(move || {
                let mut number = thread;
                for _ in 0..turns {
                    turn(cores, number, fatal);
                    if number == thread && begun.fetch_add(1, Ordering::Relaxed) + 1 == THREADS {
                        println!("ready");
                    }
                    number += THREADS;
                }
            });
        }
    });
    println!("done {}", DONE.load(Ordering::Relaxed));
}
